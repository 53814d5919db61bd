"""A module that ends the process that imports it, as a damaged library may."""

import os

os._exit(4)
