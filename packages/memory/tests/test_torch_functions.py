"""PyTorch's functions for memory under this allocator, as the reference's table has it."""

import re
from pathlib import Path

import pytest
import torch
from torch_stage import run, run_enabled

TESTS = Path(__file__).parent
TABLE = TESTS.parents[2] / "docs" / "reference" / "memory.md"


def rows():
    """Returns the rows of the table: names, what they do, tests."""
    if not TABLE.exists():
        pytest.skip("needs the documentation's sources")
    section = ""
    found = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ").strip("`")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 3:
            names = [name.split("(")[0] for name in re.findall("`([^`]+)`", cells[0])]
            tests = re.findall("`(test_[^`]+)`", cells[2])
            found.append((section, names, cells[1], tests))
    return found


def names_of(*sections):
    return {
        name for section, names, _, _ in rows() if section in sections for name in names
    }


def test_table_has_every_public_function():
    of_cuda = set(torch.cuda.memory.__all__) | {
        name for name in torch.cuda.__all__ if "memory" in name and name != "memory"
    }
    assert of_cuda <= names_of("torch.cuda"), of_cuda - names_of("torch.cuda")
    of_accelerator = set(torch.accelerator.__all__) | set(
        torch.accelerator.memory.__all__
    )
    left = of_accelerator - names_of("torch.accelerator")
    assert not left, left


def test_each_row_names_a_test_that_exists():
    written = "".join(
        file.read_text(encoding="utf-8") for file in TESTS.glob("test_*.py")
    )
    assert len(rows()) > 30
    for _, names, what, tests in rows():
        assert what, names
        assert tests, names
        for test in tests:
            assert f"\ndef {test}(" in written, test


@pytest.mark.slow
def test_functions_that_ask_no_allocator_are_pytorchs(fake_cuda):
    untouched = {
        f"{section}.{name}"
        for section, names, what, _ in rows()
        if what.startswith("PyTorch's own")
        and section in {"torch.cuda", "torch.accelerator"}
        for name in names
    }
    assert len(untouched) > 20
    run_enabled(
        fake_cuda,
        f"""
        import importlib, inspect
        for name in {sorted(untouched)!r}:
            function = torch
            for part in name.split(".")[1:]:
                function = getattr(function, part, None)
            if function is None:
                continue  # of another version
            module = inspect.unwrap(function).__module__
            assert module.split(".")[0] == "torch", (name, module)
        """,
    )


@pytest.mark.slow
def test_bytes_are_this_allocators(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        for module in (torch.cuda, torch.cuda.memory, torch.accelerator,
                       torch.accelerator.memory):
            assert module.memory_allocated() == 0
            assert module.max_memory_allocated(0) in (0, 3 << 20)
            block = inner.allocate(3 << 20, 0, None)
            assert module.memory_allocated() == 3 << 20
            assert module.memory_reserved(torch.device("cuda", 0)) == 4 << 20
            inner.free(block, 3 << 20, 0, None)
            assert module.memory_allocated("cuda:0") == 0
            assert module.max_memory_allocated("cuda") == 3 << 20
            assert module.max_memory_reserved(0) == 4 << 20
            assert module.memory_allocated(1) == module.max_memory_reserved(1) == 0
        """,
    )


@pytest.mark.slow
def test_device_that_is_none_is_refused(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        inner.allocate(3 << 20, 0, None)
        for function in (
            torch.cuda.memory_allocated, torch.cuda.memory_stats, torch.cuda.memory_summary,
            torch.cuda.reset_peak_memory_stats, torch.cuda.get_per_process_memory_fraction,
            torch.accelerator.max_memory_reserved,
            torch.accelerator.reset_accumulated_memory_stats,
        ):
            refused(ValueError, "Expected a cuda device, but got: cpu", function, "cpu")
            refused(MemoryUseError, "there is no CUDA device 2", function, 2)
            refused(MemoryUseError, "there is no CUDA device -1", function, -1)
        """,
    )


@pytest.mark.slow
def test_statistics_name_what_is_counted(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        inner.free(inner.allocate(3 << 20, 0, None), 3 << 20, 0, None)
        inner.allocate(2 << 20, 0, None)
        for module in (torch.cuda, torch.accelerator, torch.accelerator.memory):
            counts = module.memory_stats()
            assert counts["allocation.all.allocated"] == 2
            assert counts["allocation.all.current"] == 1
            assert counts["requested_bytes.all.current"] == 2 << 20
            assert counts["active_bytes.all.peak"] == 3 << 20
            assert counts["num_device_alloc"] == 2 and counts["num_ooms"] == 0
            # What is not counted has no name: a zero would be an answer.
            assert not {"num_alloc_retries", "active.all.peak",
                        "allocation.small_pool.current"} & counts.keys()
        nested = torch.cuda.memory_stats_as_nested_dict(0)
        assert nested["reserved_bytes"]["all"]["current"] == 4 << 20
        assert nested["num_device_free"] == 0
        """,
    )


@pytest.mark.slow
def test_peaks_begin_anew(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        for module in (torch.cuda, torch.accelerator, torch.accelerator.memory):
            inner.free(inner.allocate(3 << 20, 0, None), 3 << 20, 0, None)
            assert module.max_memory_allocated() == 3 << 20
            module.reset_peak_memory_stats()
            assert module.max_memory_allocated() == 0
            assert module.max_memory_reserved() == module.memory_reserved() == 4 << 20
        assert torch.cuda.memory_stats()["allocation.all.freed"] == 3
        """,
    )


@pytest.mark.slow
def test_counts_begin_anew(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        for module in (torch.cuda, torch.accelerator, torch.accelerator.memory):
            inner.free(inner.allocate(3 << 20, 0, None), 3 << 20, 0, None)
            assert module.memory_stats()["allocation.all.freed"] == 1
            module.reset_accumulated_memory_stats()
            counts = module.memory_stats()
            assert counts["allocation.all.allocated"] == 0 == counts["num_device_alloc"]
            assert counts["allocated_bytes.all.peak"] == 3 << 20
        """,
    )


@pytest.mark.slow
def test_old_names_answer_with_pytorchs_warning(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        import warnings

        def warned(call):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                answer = call()
            assert [one.category for one in seen] == [FutureWarning]
            return answer

        inner.free(inner.allocate(3 << 20, 0, None), 3 << 20, 0, None)
        assert warned(torch.cuda.memory_cached) == 4 << 20
        assert warned(torch.cuda.max_memory_cached) == 4 << 20
        for reset in (torch.cuda.reset_max_memory_allocated,
                      torch.cuda.reset_max_memory_cached):
            assert torch.cuda.max_memory_allocated() == 3 << 20
            warned(reset)
            assert torch.cuda.max_memory_allocated() == 0
            inner.free(inner.allocate(3 << 20, 0, None), 3 << 20, 0, None)
        """,
    )


@pytest.mark.slow
def test_summary_has_a_line_for_each_figure(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        inner.allocate(3 << 20, 0, None)
        lines = torch.cuda.memory_summary(abbreviated=True).splitlines()
        assert lines[0] == "drivetrain-memory, device 0"
        figures = dict(line.split() for line in lines[1:])
        assert figures["allocated_bytes.all.current"] == "3,145,728"
        assert figures.keys() == torch.cuda.memory_stats().keys()
        """,
    )


@pytest.mark.slow
def test_snapshot_has_all_pools_or_one(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        at = inner.allocate(3 << 20, 0, None)
        (segment,) = torch.cuda.memory_snapshot()
        assert segment["blocks"][0]["address"] == at
        assert torch.cuda.memory_snapshot((0, 0), include_traces=False) == [segment]
        for place in (torch.cuda.memory, torch.accelerator.memory):
            assert place._snapshot(0)["segments"] == [segment]
        assert torch.cuda.memory_snapshot((0, 1)) == []
        from drivetrain_memory._native import of_device
        native = of_device(0)._native
        native.allocate(5 << 20, 0, 2 * 3)  # The pool (0, 3).
        native.allocate(5 << 20, 0, 2 * 3 + 1)  # The capture's, (3, 0).
        for name in ((0, 3), (3, 0)):
            (segment,) = torch.cuda.memory_snapshot(name)
            assert segment["segment_pool_id"] == name
        assert len(torch.cuda.memory_snapshot()) == 3
        """,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        '"all", "all", "python", 4',
        "max_entries=4",
        "True, trace_alloc_max_entries=4, trace_alloc_record_context=True",
        "True, True, 4, True",
    ],
)
def test_history_keeps_as_many_entries_as_are_asked_for(fake_cuda, call):
    run_enabled(
        fake_cuda,
        f"""
        torch.cuda.memory._record_memory_history({call})
        for _ in range(9):
            inner.free(inner.allocate(3 << 20, 0, None), 3 << 20, 0, None)
        snapshot = torch.cuda.memory._snapshot()
        entries = snapshot["device_traces"][0]
        assert len(entries) == 4, entries
        assert not any(entry["frames"] for entry in entries)
        path = tempfile.mkdtemp() + "/snapshot.pickle"
        torch.cuda.memory._dump_snapshot(path, augment_with_fx_traces=False)
        trace = drivetrain_memory.load_snapshot(path)
        torch.cuda.memory._record_memory_history(enabled=None)
        assert torch.cuda.memory._snapshot()["device_traces"] == [[]]
        refused(MemoryUseError, "the history of pinned memory needs PyTorch's own",
                torch.cuda.memory._record_memory_history, record_pinned_host_memory=True)
        """,
    )


@pytest.mark.slow
def test_cache_is_emptied(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        for module in (torch.cuda, torch.cuda.memory, torch.accelerator,
                       torch.accelerator.memory):
            inner.free(inner.allocate(3 << 20, 0, None), 3 << 20, 0, None)
            assert torch.cuda.memory_reserved() == 4 << 20
            module.empty_cache()
            assert torch.cuda.memory_reserved() == 0
        """,
    )


@pytest.mark.slow
def test_fraction_that_was_set_is_answered_and_a_limit(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        assert torch.cuda.get_per_process_memory_fraction() == 1.0
        fake = ctypes.CDLL(CUDA)
        fake.fake_cuda_configure(ctypes.c_uint64(64 << 20), 2, 1)
        torch.cuda.set_per_process_memory_fraction(0.25, 0)
        refused(ValueError, "Invalid fraction", torch.cuda.set_per_process_memory_fraction,
                1.5)
        for module in (torch.cuda, torch.cuda.memory):
            assert module.get_per_process_memory_fraction("cuda:0") == 0.25
            assert module.get_per_process_memory_fraction(1) == 1.0
        from drivetrain_memory._native import of_device
        native = of_device(0)._native
        refused(drivetrain_memory.DeviceMemoryError, "16.00 MiB", native.allocate,
                18 << 20, 0, 0)
        inner.allocate(16 << 20, 0, None)
        torch.cuda.memory.set_per_process_memory_fraction(0.5)
        assert torch.cuda.get_per_process_memory_fraction() == 0.5
        """,
    )


@pytest.mark.slow
def test_raw_memory_comes_from_here(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        at = torch.cuda.caching_allocator_alloc(3 << 20, device=0, stream=0)
        assert torch.cuda.memory_allocated() == 3 << 20
        torch.cuda.caching_allocator_delete(at)
        assert torch.cuda.memory_allocated() == 0
        """,
    )


@pytest.mark.slow
def test_switching_the_cache_off_is_refused(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        text = "caching_allocator_enable(False) needs PyTorch's own allocator"
        for module in (torch.cuda, torch.cuda.memory):
            refused(MemoryUseError, text, module.caching_allocator_enable, False)
            refused(MemoryUseError, text, module.caching_allocator_disabled().__enter__)
            module.caching_allocator_enable()
        """,
    )


@pytest.mark.slow
def test_another_allocator_can_be_made_and_not_put_in_place(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        from drivetrain_memory import _enable

        other = torch.cuda.memory.CUDAPluggableAllocator(
            str(_enable.library_path()), _enable._ALLOCATE, _enable._FREE
        )
        refused(RuntimeError, "Can't swap an already initialized allocator",
                torch.cuda.memory.change_current_allocator, other)
        assert current == [inner] and drivetrain_memory.is_enabled()
        """,
    )


@pytest.mark.slow
def test_pool_keeps_its_memory_as_long_as_it_lives(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        for module in (torch.cuda, torch.cuda.memory):
            pool = module.MemPool()
            assert isinstance(pool, torch.cuda.MemPool) and pool.allocator is None
            assert pool.use_count() == 1 and pool.snapshot() == []
            for device in (None, 0, 1):
                with module.use_mem_pool(pool, device):
                    assert pool.use_count() == 2
            try:
                with module.use_mem_pool(pool):
                    raise KeyError
            except KeyError:
                assert pool.use_count() == 1
            name = pool.id
            del pool
            begun = ("beg", "end", "beg", "end", "rel")
            used = [*((call, 0) for call in begun),
                    *((call, 0) for call in begun[2:]),
                    *((call, 1) for call in begun),
                    *((call, 0) for call in begun[2:]),
                    ("rel", 0), ("rel", 1)]
            assert pool_calls == [(call, device, name) for call, device in used]
            pool_calls.clear()
        assert name == (0, 2)
        """,
    )


@pytest.mark.slow
def test_pool_with_an_allocator_of_its_own_is_refused(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        for options in ({"allocator": object()}, {"use_on_oom": True}, {"no_split": True}):
            refused(MemoryUseError, "PyTorch's own allocator",
                    lambda: torch.cuda.MemPool(**options))
        """,
    )


@pytest.mark.slow
def test_tagged_memory_sleeps_and_wakes(fake_cuda):
    run_enabled(
        fake_cuda,
        """
        from drivetrain_memory import is_asleep, sleep, tag, wake
        for name in ("", None, 3, "a\\0b", "\\udc80"):
            refused(MemoryUseError, "a tag has a name", tag(name).__enter__)
        with tag("Gewichte, 重み " + 1000 * "x"):
            pass
        refused(MemoryUseError, "nothing has the tag 'weights'", is_asleep, "weights")
        with tag("weights"):
            weights = inner.allocate(6 << 20, 0, None)
            with tag("cache"):
                inner.allocate(4 << 20, 0, None)
        other = inner.allocate(2 << 20, 0, None)
        ctypes.memset(weights, 7, 6 << 20)
        live = torch.cuda.memory_allocated()
        assert not is_asleep("weights")
        assert sleep("weights") == 6 << 20
        assert is_asleep("weights") and not is_asleep() and not is_asleep("cache")
        # A graph's capture is announced: what another library has is not to be waited for.
        where, none = (ctypes.c_uint64(1), ctypes.c_uint64(5)), ctypes.create_string_buffer(32)
        inner.hook("set_begin_allocate_to_pool")(0, *where, none)
        refused(MemoryUseError, "a memory pool is in use", sleep, "cache")
        inner.hook("set_end_allocate_to_pool_fn")(0, *where)
        assert sleep("cache", keep=False) == 4 << 20
        assert sleep() == 2 << 20
        # It has addresses alone, by every figure.
        assert torch.cuda.memory_reserved() == torch.cuda.memory_allocated() == 0
        assert drivetrain_memory.stats().asleep_bytes == live == 12 << 20
        assert not drivetrain_memory.snapshot()["segments"]
        refused(MemoryUseError, "the tag 'weights' sleeps already", sleep, "weights")
        for name in ("weights", "cache", None):
            wake(name)
        assert torch.cuda.memory_allocated() == live
        assert drivetrain_memory.stats().asleep_bytes == 0
        refused(MemoryUseError, "memory without a tag does not sleep", wake)
        refused(MemoryUseError, "nothing has the tag 'none'", sleep, "none")
        assert ctypes.string_at(weights, 6 << 20) == b"\7" * (6 << 20)
        """,
    )


@pytest.mark.slow
def test_memory_sleeps_only_where_this_allocator_is_pytorchs(fake_cuda):
    run(
        fake_cuda,
        """
        from drivetrain_memory import sleep, tag, wake
        for call in (sleep, wake, tag("x").__enter__):
            refused(MemoryUseError, "call it first", call)
        """,
    )
