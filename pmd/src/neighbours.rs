//! Maps host addresses to N_Port_IDs.

use fcvi_frame::fc::NPortId;
use vi_types::HostAddress;

/// The hosts that a NIC can reach, and their N_Port_IDs.
///
/// A host has one address and may have several ports: one for each of its programs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Neighbours {
    own_host: HostAddress,
    own_id: NPortId,
    /// Other ports of the own host: stations of the segment, or configured ones.
    siblings: Vec<NPortId>,
    /// Those of them that have joined.
    seen: Vec<NPortId>,
    hosts: Vec<(HostAddress, Vec<NPortId>)>,
    /// Discovered ports and their hosts.
    found: Vec<(NPortId, HostAddress)>,
}

impl Neighbours {
    pub(crate) fn new(
        own_host: HostAddress,
        own_id: NPortId,
        siblings: Vec<NPortId>,
        hosts: Vec<(HostAddress, Vec<NPortId>)>,
    ) -> Self {
        Self {
            own_host,
            own_id,
            siblings: siblings.into_iter().filter(|id| *id != own_id).collect(),
            seen: Vec::new(),
            hosts,
            found: Vec::new(),
        }
    }

    /// Changes the own N_Port_ID and removes all discovered ports.
    pub(crate) fn set_own_id(&mut self, own_id: NPortId) {
        self.own_id = own_id;
        self.found.clear();
    }

    /// Adds a discovered port, or changes its host.
    pub(crate) fn add_discovered(&mut self, id: NPortId, host: HostAddress) {
        if id == self.own_id {
            return;
        }
        self.found.retain(|(known, _)| *known != id);
        self.found.push((id, host));
    }

    /// Returns the own host, to which all stations of the segment belong.
    pub(crate) fn own_host(&self) -> HostAddress {
        self.own_host
    }

    /// Adds a port of the own host that has joined the segment.
    pub(crate) fn add_sibling(&mut self, id: NPortId) {
        if id == self.own_id {
            return;
        }
        for known in [&mut self.siblings, &mut self.seen] {
            if !known.contains(&id) {
                known.push(id);
            }
        }
    }

    /// Removes a port that has left.
    pub(crate) fn remove(&mut self, id: NPortId) {
        self.siblings.retain(|s| *s != id);
        self.seen.retain(|s| *s != id);
        self.found.retain(|(known, _)| *known != id);
    }

    /// Returns the hosts with other ports, each once: the own host if a port has joined there, then
    /// the configured and discovered ones.
    pub(crate) fn discovered(&self) -> Vec<HostAddress> {
        let own = (!self.seen.is_empty()).then_some(self.own_host);
        let configured = self.hosts.iter().map(|(host, _)| *host);
        let others = self.found.iter().map(|(_, host)| *host);
        let mut found = Vec::new();
        for host in own.into_iter().chain(configured).chain(others) {
            if !found.contains(&host) {
                found.push(host);
            }
        }
        found
    }

    /// Returns the ports that have joined, then the configured and the discovered ones,
    /// with their hosts.
    pub(crate) fn others(&self) -> impl Iterator<Item = (NPortId, HostAddress)> + '_ {
        let seen = self.seen.iter().map(|id| (*id, self.own_host));
        let of = |(host, ids): &'_ (HostAddress, Vec<NPortId>)| {
            let host = *host;
            ids.clone().into_iter().map(move |id| (id, host))
        };
        let configured = self.hosts.iter().flat_map(of);
        seen.chain(configured).chain(self.found.iter().copied())
    }

    /// Returns the ports of a host; none if the host is unknown.
    pub(crate) fn ports(&self, host: &HostAddress) -> Vec<NPortId> {
        let found = self.found.iter().filter(|(_, known)| known == host);
        let found = found.map(|(id, _)| *id);
        if *host == self.own_host {
            let mut ports = vec![self.own_id];
            ports.extend_from_slice(&self.siblings);
            ports.extend(found);
            return ports;
        }
        let configured = self.hosts.iter().filter(|(known, _)| known == host);
        let configured = configured.flat_map(|(_, ids)| ids.iter().copied());
        configured.chain(found).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_the_own_host_are_own_id_and_siblings() {
        let id = |n| NPortId::new(n).unwrap();
        let (own, other) = (HostAddress([1; 16]), HostAddress([2; 16]));
        let mut n = Neighbours::new(own, id(1), vec![id(1)], vec![(other, vec![id(9)])]);
        n.add_sibling(id(2));
        n.add_sibling(id(2));
        n.add_sibling(id(1));
        assert_eq!(n.ports(&own), [id(1), id(2)]);
        assert_eq!(n.ports(&other), [id(9)]);
        let others: Vec<_> = n.others().collect();
        assert_eq!(others, [(id(2), own), (id(9), other)]);
        assert!(n.ports(&HostAddress([3; 16])).is_empty());
        n.remove(id(2));
        assert_eq!(n.ports(&own), [id(1)]);
    }

    #[test]
    fn discovered_ports_belong_to_their_advertised_host() {
        let id = |n| NPortId::new(n).unwrap();
        let (own, other) = (HostAddress([1; 16]), HostAddress([2; 16]));
        let mut n = Neighbours::new(own, id(0), vec![], vec![]);
        n.set_own_id(id(1));
        n.add_discovered(id(1), own);
        n.add_discovered(id(2), own);
        n.add_discovered(id(3), other);
        n.add_discovered(id(4), own);
        n.add_discovered(id(4), other);
        assert_eq!(n.ports(&own), [id(1), id(2)]);
        assert_eq!(n.ports(&other), [id(3), id(4)]);
        assert_eq!(n.discovered(), [own, other]);
        n.remove(id(2));
        n.remove(id(3));
        assert_eq!(n.ports(&own), [id(1)]);
        assert_eq!(n.discovered(), [other]);
        n.set_own_id(id(9));
        assert_eq!(n.ports(&own), [id(9)]);
        assert!(n.discovered().is_empty());
    }

    #[test]
    fn discovered_lists_each_host_once_and_the_own_host_only_with_siblings() {
        let id = |n| NPortId::new(n).unwrap();
        let (own, other) = (HostAddress([1; 16]), HostAddress([2; 16]));
        let hosts = vec![(other, vec![id(9)]), (other, vec![id(8)])];
        // A configured range contains the IDs that programs may claim, whether used or not.
        let mut n = Neighbours::new(own, id(1), vec![id(1), id(2)], hosts);
        assert_eq!(n.discovered(), [other]);
        n.add_sibling(id(1));
        assert_eq!(n.discovered(), [other], "the own port");
        n.add_sibling(id(2));
        n.add_sibling(id(3));
        n.remove(id(3));
        assert_eq!(n.discovered(), [own, other]);
        n.remove(id(2));
        assert_eq!(n.discovered(), [other]);
    }
}
