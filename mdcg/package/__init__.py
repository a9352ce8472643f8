"""Packages: models converted to one file that libmdcg evaluates without any framework.

The file, ``.mdcg``
===================

A package is a valid safetensors file: 8 bytes with the length of the header (little endian), the
header (JSON, at most 100 MB), the tensors without gaps. Its ``__metadata__`` holds

``mdcg``
    The manifest, JSON text with sorted keys and no spaces.
``sha256``
    SHA-256, in hexadecimal, of the manifest's text followed by all bytes after the header; readers
    check it.

Equal packages are equal files. Reading one runs nothing of it; evaluating compiles and runs its
kernels, unless generic ones are asked for.

Tensors are row-major: weights in the package's ``dtype``; numbers beside them (energies, scales,
radial bases, tables of pairs of types) always F64; indices I32; texts and binaries of kernels U8.
Their names hold a dot, those of values never do.

The manifest
============

==================  ===============================================================================
``format``          1; a reader refuses what is newer than itself
``mdcg_version``    of the converter
``architecture``    ``"mace"`` or ``"nequip"``; ``model_class``: the Python class
``type_names``      names of the T types, different, chemical symbols where types are elements
``atomic_numbers``  one for each type, or null
``r_max``           largest cutoff, Å
``dtype``           ``"float32"`` or ``"float64"``
``energy_unit``     ``"eV"``; ``length_unit``: ``"angstrom"``
``head``            the one that was converted, or null
``edge_vector``     ``"receiver_minus_sender"`` or ``"sender_minus_receiver"``: argument of the
                    harmonics
``source``          ``name`` and ``sha256`` of the checkpoint, or null
``options``         what it was converted with
``verification``    comparison with the original (``passed``, ``below``, ...), or null
``values``          irreps of every value by name, ``"128x0e+128x1o"``
``layers``          the program: a list of layers, in order
``descriptors``     values that describe an atom
``kernels``         for each: ``name``, ``kind`` (``"conv"``, ``"contraction"``), ``layer``,
                    ``source`` (tensor with C++ text) and ``binaries``, each with ``target``,
                    ``tensor``, ``sha256``
``cuda_kernels``    for each pass of a layer on CUDA devices: ``layer``, ``pass``, ``programs``
                    (tensors with CUDA text), ``entries`` (functions and how they are launched),
                    ``arguments`` in their order, ``zeroed``, ``run``, ``widths`` of rows, and
                    ``degree``, odd, of polynomials that stand for an exact network
==================  ===============================================================================

A *value* is a matrix [nodes][irreps]: blocks in their order, a block as [2l+1][mul], m in e3nn's
order (l = 1: y, z, x). Every value is written by one layer, before it is read. The backward pass
is not in the file: layers in reverse order.

Layers
======

Each has ``type`` and ``name``; x, y, out are values, other fields numbers or names of tensors. An
edge leads from its sender to its receiver; r is its length, i a node.

``type_rows``
    ``out``, ``table`` [T][row]: the row of the node's type.
``linear``
    ``x``, ``out``, ``paths``: {in, out (blocks), weight [mul_in, mul_out] or [T, mul_in, mul_out]},
    ``bias``: {out, value [mul_out] or [T, mul_out]}. Factors of the model are in the weights.
``conv``
    ``x`` or ``x_table`` [T][row], ``out``, ``problem`` (JSON of a :class:`~mdcg.ConvProblem`,
    layout ir_mul), ``nonzeros`` [n][4] (path, and components of x, harmonics, out) and ``values``
    [n] (3j symbol times path weight), ``radial``, ``kernel``: sum over edges to i.
``edge_sum``
    ``out``, ``radial``, ``activation`` (``"tanh_square"``, ``"none"``): sum of the activated
    outputs over edges to i.
``normalize``
    ``x``, ``density`` (a 1x0e value), ``alpha``, ``beta``, ``out``: x / (beta density + alpha).
``scale``
    ``x``, ``factor`` [T] or [1], ``out``.
``contraction``
    ``x``, ``out``, ``problem`` (JSON of a :class:`~mdcg.SymmetricContractionProblem`),
    ``coefficients`` [T or 1][num_coefficients][channels], ``kernel``.
``gate``
    ``x``, ``out``, ``scalars``: {in, out, activation, factor}: factor act(x); ``gated``: {gate,
    gate_offset, in, out, activation, factor}: x times factor act(gates).
``product``, ``sum``
    ``x``, ``y``, ``out``: component by component; ``x`` (a list), ``out``.
``exchange``
    ``x``: rows of ghosts come from their owners; backward, their gradients go there.
``energy``
    ``x``, ``channel``, ``scale`` [T] or [1], ``shift`` [T] or [1]: E_i += scale x + shift.
``pair_energy``
    ``kind`` ``"zbl"``, ``factor``, ``a``, ``r_max`` [T][T], ``coefficients``, ``exponents``
    (lists), ``p``: for each edge to i
    E_i += factor/r sum_k coefficient_k exp(-exponent_k r/a) cutoff_p(r/r_max).

``radial`` is a network from r to one weight per path and channel:

``r_max``
    A number, or [T receiver][T sender].
``transform``
    null, or ``kind`` ``"agnesi"`` (a, q, p): t = 1/(1 + a s^q/(1 + s^(q-p))), s = r/r_0; or
    ``"soft"`` (alpha): with a = 3/4 r_0, b = 4/3 r_0,
    t = a + (r - a)(1 + tanh(alpha/(b - a)(r - (a + b)/2)))/2; ``r_0`` [T][T]. Else t = r.
``basis``
    ``kind`` ``"bessel"`` (weights w, prefactor c): c sin(w t)/t; ``"gaussian"`` (centers,
    coefficient c): exp(c (t - center)^2); ``"chebyshev"`` (order K): T_1(t) ... T_K(t).
    ``argument`` ``"normalized"``: t = r/r_max instead.
``cutoff``, ``cutoff_on``
    null, or {kind ``"polynomial"``, p}, of r/r_max; it multiplies the ``"basis"`` or the
    ``"weights"``.
``layers``
    {weight [in, out], bias, layer_norm (weight, bias, epsilon), activation, factor}:
    factor act(layer_norm(x weight + bias)); the last has weight and bias alone.
``sender``, ``receiver``
    A tensor [T][hidden] or a value of scalars, added to x weight + bias of the first layer.
``table``
    null, or {knots, error}: the engine tabulates the network on that many intervals; the
    converter's bound of the error.
"""

from __future__ import annotations

from .convert import ConversionOptions, convert_checkpoint, convert_model
from .package import Package

__all__ = ["ConversionOptions", "Package", "convert_checkpoint", "convert_model"]
