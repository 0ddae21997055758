"""Pictures hold all that they should, at places where it can be read; text likewise."""

import io
import itertools
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from recorded_machines import Machine
from rich.console import Console

from drivetrain_fabric.topology import (
    Gpu,
    LinkMatrix,
    NumaNode,
    NvLink,
    PciSlot,
    Topology,
    TopologyError,
    host_rich,
    host_svg,
    host_text,
    links_rich,
    links_svg,
    links_text,
    read_topology,
)
from drivetrain_fabric.topology._svg import fit, text_width

FOLDER = Path(__file__).parent / "data" / "topology"
NAMES = sorted(file.stem for file in FOLDER.glob("*.json"))
SVG = "{http://www.w3.org/2000/svg}"
DEVICES = ("gpu", "nic", "off", "switch", "nvswitch")


@pytest.fixture
def host(tmp_path, request):
    """A recorded machine."""
    machine = Machine.load(FOLDER / f"{request.param}.json")
    sysfs = machine.write_sysfs(tmp_path)
    return read_topology(sysfs, nvml=machine.nvml, name=machine.name)


every_machine = pytest.mark.parametrize("host", NAMES, indirect=True)


def boxes(svg, *kinds):
    """Returns the left, upper, right and lower edges of boxes of some kinds."""
    found = []
    for rect in svg.iter(f"{SVG}rect"):
        if rect.get("class") in kinds:
            x, y, w, h = (float(rect.get(k)) for k in ("x", "y", "width", "height"))
            found.append((x, y, x + w, y + h))
    return found


def words(svg):
    return [text.text for text in svg.iter(f"{SVG}text")]


def plain_links(size):
    rows = range(size)
    return LinkMatrix(
        delay_s=tuple(
            tuple(1e-5 * (1 + 9 * (a // 4 != b // 4)) * (a != b) for b in rows)
            for a in rows
        ),
        bytes_per_s=tuple(tuple(1e9 * (a != b) for b in rows) for a in rows),
    )


@every_machine
def test_host_svg_shows_every_device_once(host):
    svg = ET.fromstring(host_svg(host))
    shown = words(svg)
    assert len(boxes(svg, "gpu")) == len(host.gpus)
    assert len(boxes(svg, "nic", "off")) == len(host.nics)
    assert len(boxes(svg, "nvswitch")) == len(host.nvswitches)
    assert len(boxes(svg, "bar")) == len(host.numa_nodes)
    for label in [*(g.label for g in host.gpus), *(n.name for n in host.nics)]:
        assert label in shown


@every_machine
def test_host_svg_boxes_do_not_overlap_and_lie_on_the_sheet(host):
    svg = ET.fromstring(host_svg(host))
    width, height = (float(svg.get(k)) for k in ("width", "height"))
    for a, b in itertools.combinations(boxes(svg, *DEVICES), 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    for left, top, right, bottom in boxes(svg, *DEVICES, "panel", "bar"):
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height


@every_machine
def test_host_svg_wires_run_beside_devices(host):
    """A line may touch a box, and never crosses its inside."""
    svg = ET.fromstring(host_svg(host))
    for line in svg.iter(f"{SVG}polyline"):
        points = [tuple(map(float, p.split(","))) for p in line.get("points").split()]
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            for left, top, right, bottom in boxes(svg, *DEVICES):
                crosses_x = min(x0, x1) < right and max(x0, x1) > left
                crosses_y = min(y0, y1) < bottom and max(y0, y1) > top
                assert not (crosses_x and crosses_y)


@every_machine
def test_host_svg_needs_nothing_from_elsewhere(host):
    text = host_svg(host)
    assert "prefers-color-scheme:dark" in text
    assert not re.search(r"href|url\(|<script|<image", text)
    styles = re.findall(r"\.(\w+)\{", text)
    used = {name for c in re.findall(r'class="([^"]+)"', text) for name in c.split()}
    assert used <= set(styles)


def test_host_svg_escapes_names_and_shows_notes():
    slot = PciSlot(address="0000:01:00.0")
    host = Topology(
        name='<a & "b">',
        numa_nodes=(NumaNode(index=0), NumaNode(index=1)),
        gpus=(Gpu(index=0, name="<X>", slot=slot),),
        notes=("1 < 2",),
    )
    svg = ET.fromstring(host_svg(host))
    shown = words(svg)
    assert '<a & "b">' in shown
    assert "Note: 1 < 2" in shown
    assert "NUMA node unknown" in shown
    assert shown.count("no GPU and no network card") == 2


@pytest.mark.parametrize("num_gpus", [3, 6])
def test_host_svg_draws_few_direct_nvlinks_and_leaves_many_to_the_table(num_gpus):
    gpus = tuple(
        Gpu(index=i, name="V100", slot=PciSlot(address=f"0000:{i:02x}:00.0"))
        for i in range(num_gpus)
    )
    pairs = list(itertools.combinations([gpu.label for gpu in gpus], 2))
    host = Topology(
        name="mesh",
        numa_nodes=(NumaNode(index=0),),
        gpus=gpus,
        nvlinks=tuple(NvLink(gpu=a, peer=b, count=2) for a, b in pairs),
    )
    svg = ET.fromstring(host_svg(host))
    drawn = [
        line for line in svg.iter(f"{SVG}polyline") if line.get("class") == "nvwire"
    ]
    assert len(drawn) == (len(pairs) if num_gpus == 3 else 0)
    assert words(svg).count("NV2") == 2 * len(pairs)


@pytest.mark.parametrize("size", [1, 2, 8, 16, 40])
def test_links_svg_has_a_cell_for_each_link_in_two_maps(size):
    svg = ET.fromstring(links_svg(plain_links(size), name="a < b"))
    cells = [r for r in svg.iter(f"{SVG}rect") if r.get("class") == "cell"]
    scales = 2 * 40
    assert len(cells) == 2 * size * (size - 1) + scales
    assert len(boxes(svg, "self")) == 2 * size
    assert "a < b" in words(svg)
    has_numbers = "10" in [t.text for t in svg.iter(f"{SVG}text") if t.get("style")]
    assert has_numbers == (1 < size <= 16)


def test_links_svg_frames_hosts_and_flaws():
    matrix = plain_links(8)
    speeds = [list(row) for row in matrix.bytes_per_s]
    speeds[1][6] = 1e8
    bad = LinkMatrix(delay_s=matrix.delay_s, bytes_per_s=tuple(map(tuple, speeds)))
    svg = ET.fromstring(links_svg(bad))
    assert len(boxes(svg, "frame")) == 2 * 2
    assert len(boxes(svg, "flaw")) == 2
    assert any(
        "rank 1 to rank 6: 10.0x slower than back" in text for text in words(svg)
    )


def test_links_svg_names_the_first_of_many_flaws():
    matrix = plain_links(12)
    speeds = tuple(
        tuple(v / 4 if (a + b) % 5 == 0 else v for b, v in enumerate(row))
        for a, row in enumerate(matrix.bytes_per_s)
    )
    many = LinkMatrix(delay_s=matrix.delay_s, bytes_per_s=speeds)
    assert any(
        re.fullmatch(r"and \d+ more", text)
        for text in words(ET.fromstring(links_svg(many)))
    )


def test_drawings_of_links_refuse_hosts_that_do_not_fit():
    for draw in (links_svg, links_text, links_rich):
        with pytest.raises(TopologyError, match="hosts must hold each of"):
            draw(plain_links(3), hosts=[[0, 1]])


@pytest.mark.parametrize("host", ["dgx-h100"], indirect=True)
def test_host_text_tells_all(host):
    text = host_text(host)
    assert text.splitlines()[0] == (
        "dgx-h100: 8 x NVIDIA H100 80GB HBM3, 4 x NVSwitch, 1 x 10 Gb/s, "
        "8 x 400 Gb/s InfiniBand, 2 NUMA nodes"
    )
    assert (
        "      gpu0 H100 80GB HBM3, 80 GiB, PCIe 5 x16, NVLink 18 x 25 GB/s to "
        "nvswitch0, nvswitch1, nvswitch2, nvswitch3, use ib0" in text.splitlines()
    )
    assert "    PCIe switch 0000:16:00.0" in text.splitlines()
    assert re.search(r"^gpu7 +NV18.* PIX$", text, re.MULTILINE)


@every_machine
def test_text_and_rich_say_the_same(host):
    out = io.StringIO()
    Console(file=out, width=200, no_color=True).print(*host_rich(host), sep="\n")
    shown = out.getvalue()
    assert "\x1b" not in shown
    for line in host_text(host).split("\n\n")[0].splitlines():
        assert line.strip() in shown


def test_links_text_names_hosts_ring_and_flaws():
    matrix = plain_links(8)
    text = links_text(matrix)
    assert "Speed in GB/s, from row to column" in text
    assert "Ranks that are near to each other: 0 1 2 3; 4 5 6 7" in text
    assert "Ring: 0 1 2 3 4 5 6 7" in text
    out = io.StringIO()
    Console(file=out, width=200).print(*links_rich(matrix), sep="\n")
    assert "Ring: 0 1 2 3 4 5 6 7" in out.getvalue()


@pytest.mark.parametrize("width", [0, 20, 60, 500])
def test_fit_never_gives_more_than_fits(width):
    text = "NVIDIA H100 80GB HBM3"
    shown = fit(text, width)
    assert text_width(shown) <= max(width, text_width("…"))
    assert text.startswith(shown.rstrip("…"))
