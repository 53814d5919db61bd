"""Examples of the guide, which the tests run.

sort_words      an environment of your own (docs/guide/adding-an-environment.md)
openenv_words   an environment written for OpenEnv, for the bridge (docs/guide/environments.md)
"""
