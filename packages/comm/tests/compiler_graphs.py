"""Graphs on which the tests of the compiler make schedules."""

from drivetrain_comm.compiler import degraded, full_mesh, hosts, ring, star, torus

GB = 1e9
GRAPHS = {
    graph.name: graph
    for graph in (
        star([GB] * 5, 1e-5),
        star([GB, GB, GB, GB / 4], 1e-5),
        ring(5, GB, 1e-5),
        full_mesh(4, GB, 1e-6),
        torus(3, 2, GB, 1e-6),
        hosts([GB, GB / 2], 3, 10 * GB, 1e-5, 1e-6),
        degraded(full_mesh(4, GB, 1e-6), "r0", "r1", 0.25),
        degraded(ring(4, GB, 1e-5), "r2", "r1", 0.5),
        degraded(full_mesh(5, GB, 1e-6), "r2", "r3", 0.0),
    )
}
