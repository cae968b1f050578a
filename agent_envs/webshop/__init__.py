"""WebShop, natively: the original's pages, actions and rewards, in process.

Semantics: docs/webshop.md. The original: WebShop (Yao et al. 2022, arXiv:2207.01206).
"""
