"""A transformer that carries out a scheduler's plans on real K and V, on a GPU or, slowly and
plainly, on a CPU.
"""
