"""Composite weights: weights that a checkpoint stores as several tensors, such as codes and scales.

`schemes` declares the schemes of the libraries: which tensors make a weight, and how they give the
fields of a type of `tensor_types.composite`. `composed` finds the weights of a checkpoint.
"""
