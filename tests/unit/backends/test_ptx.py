"""PTX of blocks with very many addresses."""

from __future__ import annotations

from tessera.backends.nvidia.ptx import MOST_ADDRESSES, parsed, target_machine, written

CPU, VERSION = "sm_90a", 80


def module_with(addresses: int) -> str:
    """Return a module that stores to so many addresses in one block."""
    lines = [f"  %a{i} = getelementptr float, ptr addrspace(1) %p, i64 {i}\n" for i in range(addresses)]
    lines += [f"  store float 1.0, ptr addrspace(1) %a{i}\n" for i in range(addresses)]
    body = "".join(lines)
    head = 'target triple = "nvptx64-nvidia-cuda"\ndefine ptx_kernel void @k(ptr addrspace(1) %p) {'
    return f"{head}\nentry:\n{body}  ret void\n}}\n"


def test_blocks_of_very_many_addresses_are_written_as_they_are() -> None:
    for count, opt in ((MOST_ADDRESSES, 3), (MOST_ADDRESSES + 1, 0)):
        text = module_with(count)
        machine = target_machine(CPU, VERSION, opt)
        assert written(parsed(text, machine), text, CPU, VERSION) == machine.emit_assembly(parsed(text, machine))
        other = target_machine(CPU, VERSION, 3 - opt)
        assert written(parsed(text, other), text, CPU, VERSION) != other.emit_assembly(parsed(text, other))
