"""What the engine made of the machine, in the words of an operator: printed once it is ready."""

from __future__ import annotations

from engine.request import EngineInfo


def start_plan(info: EngineInfo) -> str:
    """Several lines, no colour: it also ends in log files."""
    cache = info.pages * info.page_bytes
    tokens = info.pages * info.page_size
    together = min(info.max_running, max(1, tokens // info.max_model_len))
    batch = f"up to {info.max_running} sequences, {info.max_step_tokens} tokens a step"
    rows = [
        ("device", f"{info.device}, {info.dtype}, {info.attention} attention"),
        ("weights", f"{_size(info.weight_bytes)}, ready after {info.load_seconds:.1f} s"),
        ("KV cache", f"{_size(cache)}: {info.pages:,} pages of {info.page_size} tokens = {tokens:,} tokens"),
        ("context", f"{info.max_model_len:,} tokens a sequence"),
        ("batch", f"{batch}; the cache holds {together} of full length"),
    ]
    return "\n".join(f"  {name:<9} {value}" for name, value in rows)


def _size(count: int) -> str:
    """Bytes with a binary prefix: 1536 is 1.5 KiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
