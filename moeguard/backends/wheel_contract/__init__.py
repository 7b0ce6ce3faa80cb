"""What the adapters ask of FlashInfer, held against a real release on a machine that can run none of its kernels.

Run in a process of its own, with the release first on the path: ``moeguard doctor --wheels DIR``, and ``moeguard doctor`` for the
release that is installed.
"""
