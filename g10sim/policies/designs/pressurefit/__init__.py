"""PressureFit: residency of tensors is cut until every task fits; simulated candidates decide how."""
