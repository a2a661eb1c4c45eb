"""Published numbers compared with simulated ones: claims, validation, measurements."""
