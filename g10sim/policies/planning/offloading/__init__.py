"""Planning of designs that give training a second home: the optimizer on the CPU, tensors below the GPU."""
