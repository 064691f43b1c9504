//! The subcommand `observe`: a server that prints the outcome of each connection: statuses of receives and sends,
//! asynchronous errors, and the changed part of the memory that the client may write.

use vipl::{ConnectionRequest, VipError};

use crate::echo::{self, Shared};
use crate::peer_session::{PeerSession, ViOptions};
use e2e::failure::Failure;

/// Prefix of the names of honest clients, whose messages are echoed.
const HONEST: &str = "honest";

/// Serves any number of clients until the input ends.
pub(crate) fn observe(nic: &str, name: &str, options: &ViOptions) -> Result<(), Failure> {
    let options = options.clone();
    echo::listen(nic, name, move |shared, request| {
        let name = echo::name_of(&request);
        if name.starts_with(HONEST) {
            return echo::serve_client(shared, request);
        }
        serve(shared, &options, request, &name).map_err(|error| format!("{name}: {error}"))
    })
}

fn serve(
    shared: &Shared,
    options: &ViOptions,
    mut request: ConnectionRequest,
    name: &str,
) -> Result<(), Failure> {
    let (nic, ptag) = (&shared.nic, &shared.ptag);
    let observed = (&shared.names, &shared.events);
    let mut session = PeerSession::new((nic, ptag), observed, options, name)?;
    match request.accept(&session.vi) {
        Ok(()) => {}
        // The client has disconnected, or requests other VI attributes.
        Err(
            error @ (VipError::Timeout | VipError::InvalidMtu | VipError::InvalidReliabilityLevel),
        ) => {
            println!("rejected {name} {error:?}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    session.advertise()?;
    session.answer_probes(|| shared.is_stopping())?;
    println!("ended {name} {}", session.end(!shared.is_stopping())?);
    Ok(())
}
