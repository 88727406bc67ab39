"""The kernels on the CPU: arrays to the compiled loops, ranges of rows to the threads."""

from partita.kernels.cpu.edge_positions import gather_positions, locate_edges
from partita.kernels.cpu.excluded import find_edges
from partita.kernels.cpu.expand import expand_rows
from partita.kernels.cpu.layer_sampling import arrival_times, pick_arrivals
from partita.kernels.cpu.links import draw_candidates, find_links
from partita.kernels.cpu.norm import dropout, edge_dropout, norm_relu_dropout, norm_relu_dropout_backward
from partita.kernels.cpu.pairs import pair_edges
from partita.kernels.cpu.rank_masks import count_mask_pairs, count_masks, masks_from_sources, masks_to_sources
from partita.kernels.cpu.rows import (
    aggregate,
    aggregate_weight_grad,
    gather_rows,
    move_rows,
    segment_max,
    segment_max_backward,
    transpose,
)
from partita.kernels.cpu.sampling import (
    count_distinct,
    gcn_coefficients,
    keyed_permutation,
    relabel,
    relation_runs,
    sample_neighbors,
    sample_relations,
)
from partita.kernels.cpu.shared_draws import sample_shared
from partita.kernels.cpu.softmax import side_softmax
from partita.kernels.cpu.temporal import distinct_times, edges_until, request_keys, sample_until, to_requests
from partita.kernels.cpu.triples import complex_rows, complex_rows_backward
from partita.kernels.cpu.updates import adam_rows
from partita.kernels.cpu.walks import random_walks, top_visits, walk_draws, walk_step
