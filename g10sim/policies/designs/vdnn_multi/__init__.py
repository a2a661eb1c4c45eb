"""Planning of layer-wise offloading where several GPUs share links."""
