"""Operations on tensors, one stem each: a PyTorch reference, later a Triton kernel with its launcher."""
