//! Which N_Ports a host address means.

use fcvi_frame::connect::HostAddress;
use fcvi_frame::fc::NPortId;

/// The hosts that a NIC can reach, and their ports.
///
/// A host is one address and may be several ports: one for each of its programs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Neighbours {
    own_host: HostAddress,
    own_id: NPortId,
    /// Other ports of our own host: those that the segment shows, or configured ones.
    siblings: Vec<NPortId>,
    /// Those of them that were seen to join.
    seen: Vec<NPortId>,
    hosts: Vec<(HostAddress, Vec<NPortId>)>,
    /// Ports that were found, and the host that each of them belongs to.
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

    /// We have another N_Port_ID, and know nobody yet.
    pub(crate) fn moved(&mut self, own_id: NPortId) {
        self.own_id = own_id;
        self.found.clear();
    }

    /// A port said which host it belongs to.
    pub(crate) fn found(&mut self, id: NPortId, host: HostAddress) {
        if id == self.own_id {
            return;
        }
        self.found.retain(|(known, _)| *known != id);
        self.found.push((id, host));
    }

    /// The host that whoever joins the segment belongs to, as we do.
    pub(crate) fn own_host(&self) -> HostAddress {
        self.own_host
    }

    pub(crate) fn joined(&mut self, id: NPortId) {
        if id == self.own_id {
            return;
        }
        for known in [&mut self.siblings, &mut self.seen] {
            if !known.contains(&id) {
                known.push(id);
            }
        }
    }

    pub(crate) fn left(&mut self, id: NPortId) {
        self.siblings.retain(|s| *s != id);
        self.seen.retain(|s| *s != id);
        self.found.retain(|(known, _)| *known != id);
    }

    /// The hosts on which there are other ports, each once: ours if one was seen here, then
    /// the configured ones.
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

    /// The ports that were seen to join, then the configured ones and those that were found,
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

    /// The ports of a host; none if the host is not known.
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
    fn our_own_host_is_us_and_our_siblings() {
        let id = |n| NPortId::new(n).unwrap();
        let (own, other) = (HostAddress([1; 16]), HostAddress([2; 16]));
        let mut n = Neighbours::new(own, id(1), vec![id(1)], vec![(other, vec![id(9)])]);
        n.joined(id(2));
        n.joined(id(2));
        n.joined(id(1));
        assert_eq!(n.ports(&own), [id(1), id(2)]);
        assert_eq!(n.ports(&other), [id(9)]);
        let others: Vec<_> = n.others().collect();
        assert_eq!(others, [(id(2), own), (id(9), other)]);
        assert!(n.ports(&HostAddress([3; 16])).is_empty());
        n.left(id(2));
        assert_eq!(n.ports(&own), [id(1)]);
    }

    #[test]
    fn ports_that_were_found_are_of_the_host_that_they_say() {
        let id = |n| NPortId::new(n).unwrap();
        let (own, other) = (HostAddress([1; 16]), HostAddress([2; 16]));
        let mut n = Neighbours::new(own, id(0), vec![], vec![]);
        n.moved(id(1));
        n.found(id(1), own);
        n.found(id(2), own);
        n.found(id(3), other);
        n.found(id(4), own);
        n.found(id(4), other);
        assert_eq!(n.ports(&own), [id(1), id(2)]);
        assert_eq!(n.ports(&other), [id(3), id(4)]);
        assert_eq!(n.discovered(), [own, other]);
        n.left(id(2));
        n.left(id(3));
        assert_eq!(n.ports(&own), [id(1)]);
        assert_eq!(n.discovered(), [other]);
        n.moved(id(9));
        assert_eq!(n.ports(&own), [id(9)]);
        assert!(n.discovered().is_empty());
    }

    #[test]
    fn hosts_are_discovered_once_and_our_own_only_while_a_sibling_is_seen() {
        let id = |n| NPortId::new(n).unwrap();
        let (own, other) = (HostAddress([1; 16]), HostAddress([2; 16]));
        let hosts = vec![(other, vec![id(9)]), (other, vec![id(8)])];
        // A configured range says which ports our programs may take, not that there are any.
        let mut n = Neighbours::new(own, id(1), vec![id(1), id(2)], hosts);
        assert_eq!(n.discovered(), [other]);
        n.joined(id(1));
        assert_eq!(n.discovered(), [other], "ourselves");
        n.joined(id(2));
        n.joined(id(3));
        n.left(id(3));
        assert_eq!(n.discovered(), [own, other]);
        n.left(id(2));
        assert_eq!(n.discovered(), [other]);
    }
}
