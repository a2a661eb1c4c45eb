"""Planning of Capuchin: swaps that hide in computing first, then whatever costs least, until memory suffices.

Peng et al., Capuchin: Tensor-based GPU Memory Management for Deep Learning, ASPLOS 2020.
"""
