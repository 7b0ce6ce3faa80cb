"""A failed judgement in one sentence for people."""

from __future__ import annotations

import re

from moeguard.oracle.judge import Judgement

#: Folders of an absolute path: they say where something was built, and nothing about the kernel.
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.+@-]+/)+(?=[\w.+@-])")


def describe(judgement: Judgement) -> str:
    """One sentence about a failed judgement, with the worst place."""
    numbers = judgement.numbers
    if "finite" in judgement.failed:
        return (f"{numbers['nonfinite']} elements are not finite where the oracle is, the first at row "
                f"{numbers['worst_row']}, column {numbers['worst_column']} (expert {numbers['worst_expert']})")
    if "exact" in judgement.failed:
        cause = numbers["decoded"][0] if numbers.get("decoded") else {}
        return (f"{numbers['differing']} elements differ from the bit-exact answer, the first at row "
                f"{numbers['worst_row']}, column {numbers['worst_column']}: {numbers['got']:g} instead of "
                f"{numbers['wanted']:g} (cause: {cause.get('cause', 'unknown')}, expert {cause.get('expert')})")
    parts = [f"{numbers['got']:.4g} instead of {numbers['wanted']:.4g} at row {numbers['max_z_row']}, column "
             f"{numbers['max_z_column']} (|z| {numbers['max_z']:.3g}, limit {numbers['tau']:.3g})"]
    for rule in ("row", "tile", "column", "expert"):
        if rule in judgement.failed:
            parts.append(f"{rule} {numbers[f'worst_{rule}']} rms {numbers[f'{rule}_rms']:.3g} > {numbers[f'{rule}_limit']:.3g}")
    if "gain" in judgement.failed:
        scale = f"the answer is scaled by {1 + numbers['gain']:.4f} (limit +-{numbers['gain_limit']:.2g})"
        if abs(numbers["gain"]) <= numbers["gain_limit"]:
            scale = (f"the part of expert {numbers['gain_expert']} is scaled by {1 + numbers['expert_gain']:.4f} "
                     f"(limit +-{numbers['expert_gain_limit']:.2g})")
        parts.append(scale)
    if "global" in judgement.failed:
        parts.append(f"error {numbers['rho']:.3g} times that of healthy twins (is the declared recipe right?)")
    return "; ".join(parts)


def plain(error: BaseException) -> str:
    """The text of an exception on one printable line of at most 300 characters; of absolute paths the file's name is kept."""
    try:
        text = _FOLDERS.sub("", " ".join(str(error).split()))
    except Exception:
        return "(no text: its __str__ raises)"
    text = text[:300].encode("utf-8", "replace").decode()
    return "".join(letter if letter.isprintable() else "?" for letter in text)
