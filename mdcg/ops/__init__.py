"""torch operators over the generated kernels, modules, and the einsum reference."""

from .functional import conv, symmetric_contraction, tensor_product
from .modules import ConvTensorProduct, TensorProduct

__all__ = ["ConvTensorProduct", "TensorProduct", "conv", "symmetric_contraction", "tensor_product"]
