"""PyTorch loaders beside each other, over a store that is far away:
`python -m benchmarks.loaders`.
"""
