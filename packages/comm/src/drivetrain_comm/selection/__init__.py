"""Selection of an all-reduce algorithm: probing the network, a cost model, a choice."""
