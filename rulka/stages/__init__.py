"""How a stage runs under DVC: inputs, outputs, folders, the graph, provenance."""
