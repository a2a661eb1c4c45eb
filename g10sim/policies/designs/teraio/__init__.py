"""Planning of the policy ``teraio``: tensors leave for the time in which memory is critically short."""
