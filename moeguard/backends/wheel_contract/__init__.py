"""What the adapters ask of FlashInfer, held against a real release on a machine that can run none of its kernels.

Run in a process of its own, with the release first on the path: ``moeguard doctor --wheels DIR``, and ``moeguard doctor`` for the
release that is installed. The adapters for Blackwell call the library in one place (``Library.call``), where a recorder binds
what a run would call to the real signatures.
"""
