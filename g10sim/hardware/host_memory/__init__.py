"""Host memory for whole tensors: pinned, pageable or compressed."""
