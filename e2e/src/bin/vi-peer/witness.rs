//! A server that tells of each connection how it ended for its program: what the receives and sends ended with, which
//! asynchronous errors came, and what became of the memory that the client may write.

use vipl::{ConnectionRequest, VipError};

use crate::Failure;
use crate::echo::{self, Shared};
use crate::party::{Party, Shape};

/// Whose name begins so is honest, and gets back what it sends.
const HONEST: &str = "honest";

/// Serves any number of clients until the input ends.
pub(crate) fn witness(nic: &str, name: &str, shape: &Shape) -> Result<(), Failure> {
    let shape = shape.clone();
    echo::listen(nic, name, move |shared, request| {
        let name = echo::name_of(&request);
        if name.starts_with(HONEST) {
            return echo::serve_client(shared, request);
        }
        attend(shared, &shape, request, &name).map_err(|error| format!("{name}: {error}"))
    })
}

fn attend(
    shared: &Shared,
    shape: &Shape,
    mut request: ConnectionRequest,
    name: &str,
) -> Result<(), Failure> {
    let told = (&shared.names, &shared.events);
    let mut party = Party::new((&shared.nic, &shared.ptag), told, shape, name)?;
    match request.accept(&party.vi) {
        Ok(()) => {}
        // It is gone, or wants another kind of connection.
        Err(
            error @ (VipError::Timeout | VipError::InvalidMtu | VipError::InvalidReliabilityLevel),
        ) => {
            println!("refused {name} {error:?}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    party.advertise()?;
    party.attend(|| shared.ends())?;
    println!("ended {name} {}", party.end(!shared.ends())?);
    Ok(())
}
