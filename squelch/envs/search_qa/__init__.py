"""Questions whose answers must be searched for: `environment`, and the sources of questions `world` and `hotpot`."""
