//! The process that removes this instance's cgroups when the daemon is killed.

use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use sandcrate_driver::{AsyncChannel, lock};
use sandcrate_jail::Channel;
use sandcrate_jail::nsjail::{JANITOR, JanitorOrder};
use tokio::process::Child;

use crate::runner::role_of;

/// For one that has nothing left to do.
const END_LIMIT: Duration = Duration::from_secs(5);

/// It goes to work when our end of the channel closes, by whatever cause; so it is not killed with this handle.
#[derive(Debug)]
pub(crate) struct Janitor(Mutex<Option<(AsyncChannel, Child)>>);

impl Janitor {
    pub(crate) fn start(program: &Path, instance: &str) -> io::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        ours.send(&JanitorOrder { instance: instance.to_owned() }, &[])?;
        let child = role_of(program, JANITOR, theirs).spawn()?;
        Ok(Self(Mutex::new(Some((AsyncChannel::new(ours)?, child)))))
    }

    /// Lets it end, when everything is removed.
    pub(crate) async fn dismiss(&self) {
        let there = lock(&self.0).take();
        if let Some((channel, mut child)) = there {
            channel.close();
            // One that is late is reaped when it comes.
            let _ = tokio::time::timeout(END_LIMIT, child.wait()).await;
        }
    }
}
