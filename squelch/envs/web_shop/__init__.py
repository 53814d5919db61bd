"""Shopping for a product that an instruction describes (Yao et al. 2022, "WebShop"): `environment`, and the catalogues
`made_up` and `published`."""
