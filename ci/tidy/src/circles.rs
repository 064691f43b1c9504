//! Circles of a directed graph, and the edges that close them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// An edge between two nodes.
pub type Edge = (usize, usize);

/// Nodes of which each reaches every other one.
pub type Circle = BTreeSet<usize>;

/// Returns the circles of more than one node, the largest first.
pub fn circles(edges: &BTreeSet<Edge>) -> Vec<Circle> {
    let reversed = edges.iter().map(|&(from, to)| (to, from)).collect();
    let mut nodes: BTreeSet<usize> = edges.iter().map(|&(from, _)| from).collect();
    let mut circles = Vec::new();
    while let Some(node) = nodes.pop_first() {
        let circle = &reachable(node, edges) & &reachable(node, &reversed);
        nodes.retain(|node| !circle.contains(node));
        if circle.len() > 1 {
            circles.push(circle);
        }
    }
    circles.sort_by_key(|circle| Reverse(circle.len()));
    circles
}

fn reachable(start: usize, edges: &BTreeSet<Edge>) -> BTreeSet<usize> {
    let mut reached = BTreeSet::from([start]);
    let mut open = vec![start];
    while let Some(node) = open.pop() {
        for &(_, next) in edges.range((node, 0)..=(node, usize::MAX)) {
            if reached.insert(next) {
                open.push(next);
            }
        }
    }
    reached
}

/// Returns edges of small total weight without which no circle of more than `limit` nodes remains.
///
/// The edges that point backwards in an order of the nodes break all circles. Local searches find the order; then the
/// heaviest edges whose circles are within the limit are taken back.
pub fn cuts(weights: &BTreeMap<Edge, usize>, limit: usize) -> Vec<Edge> {
    let ends = weights.keys().flat_map(|&(from, to)| [from, to]);
    let nodes: Vec<usize> = ends.collect::<BTreeSet<usize>>().into_iter().collect();
    let orders = (0..nodes.len()).map(|start| {
        let mut order = nodes.clone();
        order.rotate_left(start);
        improve(&mut order, weights);
        backward(&order, weights)
    });
    let weight_of = |edges: &Vec<Edge>| edges.iter().map(|edge| weights[edge]).sum::<usize>();
    let mut cuts = orders.min_by_key(weight_of).unwrap_or_default();
    cuts.sort_by_key(|edge| Reverse(weights[edge]));
    let mut kept: BTreeSet<Edge> = weights.keys().copied().collect();
    kept.retain(|edge| !cuts.contains(edge));
    cuts.retain(|&edge| {
        kept.insert(edge);
        let largest = circles(&kept).into_iter().next().unwrap_or_default();
        largest.len() > limit && kept.remove(&edge)
    });
    cuts.sort_unstable();
    cuts
}

/// Returns the edges that point backwards in an order of the nodes.
fn backward(order: &[usize], weights: &BTreeMap<Edge, usize>) -> Vec<Edge> {
    let position = |node| order.iter().position(|&other| other == node);
    let edges = weights.keys().copied();
    edges
        .filter(|&(from, to)| position(from) > position(to))
        .collect()
}

/// Moves nodes as long as a move makes the edges that point backwards lighter.
fn improve(order: &mut Vec<usize>, weights: &BTreeMap<Edge, usize>) {
    let weight = |from, to| weights.get(&(from, to)).copied().unwrap_or(0);
    let nodes = order.clone();
    loop {
        let before = order.clone();
        for &node in &nodes {
            let from = order.iter().position(|&other| other == node);
            order.retain(|&other| other != node);
            // The weight that points backwards if the node is at the front, and after each step to the back.
            let mut weights = vec![
                order
                    .iter()
                    .map(|&other| weight(other, node))
                    .sum::<usize>(),
            ];
            for (at, &other) in order.iter().enumerate() {
                weights.push(weights[at] + weight(node, other) - weight(other, node));
            }
            // Does not move without gain, so that the loop ends.
            let to = (0..weights.len()).min_by_key(|&at| (weights[at], Some(at) != from));
            order.insert(to.unwrap_or(0), node);
        }
        if *order == before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_are_found_the_largest_first() {
        let edges = BTreeSet::from([
            (0, 1),
            (1, 0),
            (1, 2),
            (2, 3),
            (3, 4),
            (4, 2),
            (4, 5),
            (6, 6),
        ]);
        let expected = [BTreeSet::from([2, 3, 4]), BTreeSet::from([0, 1])];
        assert_eq!(circles(&edges), expected);
    }

    #[test]
    fn cuts_are_the_lightest_edges_that_break_a_circle() {
        let ring = BTreeMap::from([((0, 1), 5), ((1, 2), 1), ((2, 3), 5), ((3, 0), 2)]);
        assert_eq!(cuts(&ring, 1), [(1, 2)]);
        assert_eq!(cuts(&ring, 3), [(1, 2)]);
        assert_eq!(cuts(&ring, 4), []);
    }

    #[test]
    fn cuts_leave_circles_within_the_limit() {
        let pairs = [((0, 1), 1), ((1, 0), 1), ((2, 3), 1), ((3, 2), 1)];
        let mut weights = BTreeMap::from(pairs);
        weights.extend([((1, 2), 4), ((3, 0), 3)]);
        // Half of a pair is lighter than what joins the pairs.
        assert_eq!(cuts(&weights, 2).len(), 1);
        assert_eq!(cuts(&weights, 1).len(), 2);
    }

    #[test]
    fn dense_graph_has_no_larger_circle_after_its_cuts() {
        let edge = |n: usize| ((n % 23, (n * n / 5 + 3) % 23), 1 + n % 4);
        let weights: BTreeMap<Edge, usize> = (0..150).map(edge).collect();
        let all: BTreeSet<Edge> = weights.keys().copied().collect();
        assert!(circles(&all)[0].len() > 10);
        for limit in 1..10 {
            let cuts = cuts(&weights, limit).into_iter().collect();
            let left = circles(&(&all - &cuts));
            assert!(left.iter().all(|circle| circle.len() <= limit), "{left:?}");
        }
    }
}
