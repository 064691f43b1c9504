//! The nodes of a net, by their roles.

use core::ops::{Deref, DerefMut, Index, IndexMut};

use fcvi_frame::fc::NPortId;

use super::io::TestIo;
use crate::Engine;

/// One N_Port.
pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) io: TestIo,
    pub(crate) id: NPortId,
}

/// The nodes of a net. A single one has all roles.
pub(crate) struct Nodes(Vec<Node>);

impl Nodes {
    pub(crate) fn new(nodes: Vec<Node>) -> Self {
        Self(nodes)
    }
}

impl Deref for Nodes {
    type Target = [Node];

    fn deref(&self) -> &[Node] {
        &self.0
    }
}

impl DerefMut for Nodes {
    fn deref_mut(&mut self) -> &mut [Node] {
        &mut self.0
    }
}

impl Index<usize> for Nodes {
    type Output = Node;

    fn index(&self, node: usize) -> &Node {
        let at = if self.0.len() == 1 { 0 } else { node };
        &self.0[at]
    }
}

impl IndexMut<usize> for Nodes {
    fn index_mut(&mut self, node: usize) -> &mut Node {
        let at = if self.0.len() == 1 { 0 } else { node };
        &mut self.0[at]
    }
}

impl<'a> IntoIterator for &'a Nodes {
    type Item = &'a Node;
    type IntoIter = core::slice::Iter<'a, Node>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a mut Nodes {
    type Item = &'a mut Node;
    type IntoIter = core::slice::IterMut<'a, Node>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter_mut()
    }
}
