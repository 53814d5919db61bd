"""Questions whose answers must be searched for: `environment`, and where questions come from: `world`, `hotpot`."""
