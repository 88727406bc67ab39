"""Isolated training (Grappa, SDT-GNN): views of parts of the graph, schedules of views, and how models agree."""
