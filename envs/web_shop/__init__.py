"""Shopping for what an instruction asks (Yao et al. 2022, "WebShop"): `environment`, and the shelves: `made_up`,
`published`."""
