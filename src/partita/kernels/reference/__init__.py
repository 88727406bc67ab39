"""What every kernel means, in plain Python, numpy and torch: the oracle of the tests and the fallback without numba.

Everything random is integer arithmetic modulo 2^64, so that every implementation draws the same bits.

**Draws.** ``fold(key, value) = mix64(key + GOLDEN * (value + 1))`` as in :mod:`partita.core.keys`. A destination with
original index v has the node key ``fold(key, v)``; its draw number s is ``h_s = fold(fold(key, v), s)``.
``below(h, n) = floor(h * n / 2^64)`` maps a draw to 0..n-1 (the high word of a 64 x 64 bit product; the bias is below
n / 2^64). *Slot* j of a node is the j-th in-edge of its row, counted from 0.

**Uniform with replacement**, fanout k, degree d > 0: pick s is slot ``below(h_s, d)``, for s = 0..k-1.

**Uniform without replacement**: all slots in row order if d <= k. Otherwise Floyd's algorithm (Bentley and Floyd,
"A sample of brilliance", CACM 1987): for s = 0..k-1 let b = d - k + s and t = ``below(h_s, b + 1)``; pick slot t, or
slot b where t was picked before. Every set of k slots is equally likely; work and memory do not depend on d.

**Weighted without replacement**: only slots of positive weight take part; all of them in row order if they are at
most k. Otherwise every slot j arrives at a time of its own (Efraimidis and Spirakis, "Weighted random sampling with a
reservoir", IPL 2006), ``-log2(u_j) / w_j`` with u_j = h_j / 2^64; the k first to arrive are picked, of equal times the
smaller slot, and they are listed in slot order. This is drawing one by one without replacement, each time in proportion
to the weights that are left. In integers:

- ``z`` = number of leading zero bits of h | 1, ``m = (h | 1) << z``, ``d = 2^64 - 1 - m`` (below 2^63),
  ``i = d >> 51``, ``r = (d >> 19) mod 2^32``, and ``T[i] = ceil(-log2(1 - i / 8192) * 2^42)`` for i = 0..4096;
- ``L = (z << 42) + T[i] + (((T[i+1] - T[i]) * r) >> 32)``, which is -log2(u) in units of 2^-42 with a relative error
  below 2^-13;
- ``c`` = leading zero bits of L, ``q = floor((L << c) / w)``, ``e`` = leading zero bits of q; the time is the 64-bit
  integer ``((128 - c - e) << 55) + (((q << e) >> 8) mod 2^55)``, or 0 if L is 0: exponent and mantissa of
  the quotient, so that any weight from 1 to 2^32 - 1 keeps at least 31 significant bits.

**Weighted with replacement**, total weight W > 0: pick s is the smallest slot j whose running total
w_0 + ... + w_j exceeds ``below(h_s, W)``.

**Shared by a layer**, fanout k (LABOR-0 of Balin and Catalyurek, "Layer-neighbor sampling: defusing neighborhood
explosion in GNNs", NeurIPS 2023, in its sequential Poisson form): every source t, with original index o, has one draw
``h_t = fold(key, o)`` for all destinations, and r_t = h_t / 2^64. A destination with more than k in-edges takes those k
whose sources have the smallest floor(h_t / 2), of equal ones the first in the row; others take all of them. With
weights (Ohlsson, "Sequential Poisson sampling", Journal of Official Statistics 1998; of positive weight only) they are
those with the smallest ``-log2(1 - r_t) / w``, which is the time of arrival above of the draw ``2^64 - 1 - h_t``. In
typed graphs the edges of each relation are a row of their own, and h_t is the same in all of them. Picks are listed in
row order.

Draws that *turn* from those of one key to those of the next, by an angle a: with the Gaussian numbers ``z_i =
Phi^-1(r_t)`` of both keys, ``r_t = Phi(cos(a) z_0 + sin(a) z_1)``. In integers:

- ``c`` and ``s`` are cos(a) and sin(a) in units of 2^-28, rounded; where s is 0, h_t is that of the first key;
- ``Q(h)``, in units of 2^-30: ``m = min(h, 2^64 - 1 - h) | 1`` has z leading zero bits; of ``m << z`` the five bits
  after the first are i, the 32 after those r; with ``T[z, i] = -Phi^-1(2^-(z+1) (1 + i / 32)) * 2^30``, rounded, it is
  ``T[z, i] - (((T[z, i] - T[z, i+1]) * r) >> 32)``, negative if h < 2^63;
- ``n = (c Q(h_0) + s Q(h_1)) >> 28`` and ``h_t = P(n)``, with P the linear interpolation of ``Phi * 2^64`` between
  multiples of 2^-7 from -10 to 10.

**Relations** of a typed graph: the in-edges of relation r of a destination v are drawn as the row of a node of its own,
with the original index ``v * R + r`` of R relations, and slots counted from the first edge of the relation. A layer as
a whole is drawn for each relation by itself, with a budget and a tau of its own.

**Fanout -1** takes all slots in row order (with weights: all slots of positive weight) without drawing.

**A layer as a whole**, budget n for all destinations of all workers together: slots arrive at times of their own.

- With weights, every slot j of every destination v runs a clock. Its draw number a is ``h_a = fold(fold(fold(key, v),
  j), a)``, L_a is the L above of h_a, and it arrives for the a-th time at the time of the sum ``L_0 + ... + L_a`` over
  w, encoded as above with that sum in place of L. A slot of weight 0 never arrives.
- Without weights, a destination of d slots runs one clock for all of them, at d times the rate, so that nothing is
  spent on slots that do not arrive. With ``h_a = fold(fold(key, v), a)`` its arrival a is one of slot ``below(fold(h_a,
  1), d)``, at the time of the sum of ``L_0 >> 6`` to ``L_a >> 6`` over d, encoded as above, plus ``6 << 55``, which is
  the exponent for the six bits that keep long sums from overflowing. (A Poisson process of rate d whose points are
  dealt out at random is d independent ones of rate 1.)

Without replacement only the first arrival of each slot counts, with replacement all do. Let tau be the (n+1)-th
smallest *distinct* time of an arrival (infinite where there are no more than n; written ``2^63 - 1``): all arrivals
before tau are picked, per destination in slot order, a slot as often as it arrives. A node that several workers ask for
has the same times everywhere, so its arrivals count once, whoever asks. So n edges are drawn: with replacement
independently, each in proportion to the weights over the union of the destinations, which is a multinomial sample of
it; without, one by one in proportion to the weights that are left.

The *importance* of a picked edge makes sums over the picks have those over all edges as their expectation. With t =
tau decoded, ``t = ln 2 * 2^-42 * (the quotient that tau encodes)``, it is ``1 / (1 - exp(-w t))`` without replacement
(the rank conditioning of Cohen and Kaplan, "Summarizing data using bottom-k sketches", PODC 2007: the others' n-th
time is tau, and the edge is picked if it arrives before; w = 1 without weights), ``1 / (w t)`` with replacement (n
arrivals of rate W before tau, and 1 / tau has the expectation W / n), and 1 where tau is infinite.

**Edges that are left out** (by position, ascending; *excluded* edges): every rule above and below applies to the row
without them. Of d edges in a row, t of them left out, draws are from d - t slots, which are the other edges in the
order of the row. So they draw what they would in a graph without these edges, and rows without such edges draw what
they draw in any case.

**Dropout**: column c of the row of node v is kept iff the 16-bit lane ``(fold(fold(key, v), c // 4) >> 16 * (c mod 4))
mod 2^16`` is at least ``floor(p * 65536 + 1/2)``. For edges, head a of the j-th edge of v's row in the block uses the
lane a mod 4 of ``fold(fold(fold(key, v), j), a // 4)``.

**Random walks**, R from every start, of L steps, with restart probability p: walk r = 0..R-1 from the start v with
original index o uses, before its step s = 0..L-1, the draw ``h = fold(fold(fold(key, o), r), s)``. It stands at u.
If the 16 low bits of ``fold(h, 1)`` are below ``min(floor(p * 65536 + 1/2), 65535)``, it goes back to v instead of
moving. Else it moves to the in-neighbor at slot ``below(fold(h, 0), d)`` of u, which has degree d; weighted, at the
smallest slot whose running total of weights exceeds ``below(fold(h, 0), W)``, with W the total weight of u. If d (or W)
is 0, it goes back to v; if u is v, it ends there. The *visits* of a node are the times that the R walks from v step on
it; v itself does not count. Nodes are listed by visits, most first; those with equally many in the order in which they
are first visited, walk after walk.

**Candidates** in the place of one end of a link: draw i of row b is ``h = fold(fold(key, b), i)``. In a range of n
nodes from f on it is node ``f + below(h, n)``; where some nodes are more likely than others, that is a cell, and if the
low word ``h * n mod 2^64`` of the product is not below the cell's threshold, it is the cell's other node (Walker, "An
efficient method for generating discrete random variables with general distributions", ACM TOMS 1977).

**Permutation** of 0..n-1: with b = max(1, ceil(bits(n-1) / 2)), place i is split into a high and a low half of b bits;
eight Feistel rounds r = 0..7 map (L, R) to (R, L xor (fold(fold(key, r), R) mod 2^b)); while the result is n or more,
all eight rounds are applied to it again (cycle walking, at most 4 times on average).
"""

from partita.kernels.reference.edge_positions import gather_positions, locate_edges
from partita.kernels.reference.excluded import find_edges
from partita.kernels.reference.expand import expand_rows
from partita.kernels.reference.layer_sampling import arrival_times, pick_arrivals
from partita.kernels.reference.links import draw_candidates, find_links
from partita.kernels.reference.norm import dropout, edge_dropout, norm_relu_dropout, norm_relu_dropout_backward
from partita.kernels.reference.pairs import pair_edges
from partita.kernels.reference.rank_masks import count_mask_pairs, count_masks, masks_from_sources, masks_to_sources
from partita.kernels.reference.rows import (
    aggregate,
    aggregate_weight_grad,
    gather_rows,
    move_rows,
    segment_max,
    segment_max_backward,
    transpose,
)
from partita.kernels.reference.sampling import (
    count_distinct,
    gcn_coefficients,
    keyed_permutation,
    relabel,
    relation_runs,
    sample_neighbors,
    sample_relations,
)
from partita.kernels.reference.shared_draws import sample_shared
from partita.kernels.reference.softmax import side_softmax
from partita.kernels.reference.temporal import distinct_times, edges_until, request_keys, sample_until, to_requests
from partita.kernels.reference.triples import complex_rows, complex_rows_backward
from partita.kernels.reference.updates import adam_rows
from partita.kernels.reference.walks import random_walks, top_visits, walk_draws, walk_step
