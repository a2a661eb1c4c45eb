"""Published numbers beside simulated ones: claims, validation, measurements."""
