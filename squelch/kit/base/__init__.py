"""What every module may use: the base of settings, errors of the user, look-ups, durable writes."""
