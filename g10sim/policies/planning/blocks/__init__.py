"""Planning of the policy ``flexgen``: layers of a block of batches, where tensors lie, and when they move."""
