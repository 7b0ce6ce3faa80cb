"""Routers: the protocol, the registry, healthy torch implementations and FlashInfer's kernel for DeepSeek-V3."""
