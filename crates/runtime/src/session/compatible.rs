//! Whether a request for a session that exists means the one there is.

use sandcrate_protocol::BoxSpec;

use super::{Session, SessionOptions};
use crate::RuntimeError;

impl Session {
    /// Whether a request for this id means this session, by the fields that a box cannot change.
    pub(crate) fn check_compatible(
        &self,
        wanted: &BoxSpec,
        options: &SessionOptions,
    ) -> Result<(), RuntimeError> {
        let had = &self.spec;
        let network = options.network(wanted);
        let other_network = network != self.asked_network && network != self.network();
        let had_backend = self.home.get().or(self.options.backend.as_ref());
        let other_backend = options.backend.is_some()
            && had_backend.is_some_and(|backend| Some(backend) != options.backend.as_ref());
        let differing = [
            ("backend", other_backend, had_backend.cloned().unwrap_or_default()),
            ("network", other_network, self.asked_network.to_string()),
            ("image", had.image != wanted.image, had.image.clone()),
            (
                "host_path",
                had.host_path != wanted.host_path,
                had.host_path.clone().unwrap_or_else(|| "None".to_owned()),
            ),
            (
                "host_path_mode",
                had.host_path_mode != wanted.host_path_mode,
                had.host_path_mode.as_str().to_owned(),
            ),
            ("mount_path", had.mount_path != wanted.mount_path, had.mount_path.clone()),
            ("persistent", had.persistent != wanted.persistent, python_bool(had.persistent)),
            ("cpus", had.cpus.to_bits() != wanted.cpus.to_bits(), format!("{:?}", had.cpus)),
            ("memory_mb", had.memory_mb != wanted.memory_mb, had.memory_mb.to_string()),
            ("pids_limit", had.pids_limit != wanted.pids_limit, had.pids_limit.to_string()),
            (
                "read_only_rootfs",
                had.read_only_rootfs != wanted.read_only_rootfs,
                python_bool(had.read_only_rootfs),
            ),
            (
                "workspace_quota_mb",
                had.workspace_quota_mb != wanted.workspace_quota_mb,
                had.workspace_quota_mb.to_string(),
            ),
        ];
        match differing.into_iter().find(|(_, differs, _)| *differs) {
            Some((field, _, existing)) => {
                Err(RuntimeError::SessionConflict { session: self.id.to_string(), field, existing })
            }
            None => Ok(()),
        }
    }
}

fn python_bool(value: bool) -> String {
    if value { "True" } else { "False" }.to_owned()
}

#[cfg(test)]
mod tests {
    use sandcrate_backend::SessionId;

    use super::*;

    #[test]
    fn a_changed_network_fits_by_what_it_was_and_what_it_is() {
        let request =
            |text: &str| SessionOptions { network: Some(text.parse().unwrap()), ..Default::default() };
        let id = SessionId::new("s1").unwrap();
        let mut plain = BoxSpec::new("s1");
        plain.network = sandcrate_protocol::NetworkMode::On;
        let session = Session::new(id, 1, &plain, SessionOptions::default());
        session.swap_network("allow a.example".parse().unwrap());
        assert!(session.check_compatible(&plain, &SessionOptions::default()).is_ok(), "as it was asked for");
        assert!(session.check_compatible(&plain, &request("allow a.example")).is_ok(), "as it is");
        let error = session.check_compatible(&plain, &request("allow b.example")).unwrap_err();
        assert_eq!(error.to_string(), "Box session s1 already exists with network=on");
    }

    #[test]
    fn the_first_differing_field_in_the_agreed_order_is_named_with_its_value() {
        let id = SessionId::new("s1").unwrap();
        let session = Session::new(id, 1, &BoxSpec::new("s1"), SessionOptions::default());
        let conflict = |change: &dyn Fn(&mut BoxSpec)| {
            let mut wanted = BoxSpec::new("s1");
            change(&mut wanted);
            session.check_compatible(&wanted, &SessionOptions::default()).map_err(|error| error.to_string())
        };
        assert_eq!(conflict(&|_| {}), Ok(()));
        assert_eq!(
            conflict(&|spec| {
                spec.cpus = 2.0;
                spec.memory_mb = 64;
            }),
            Err("Box session s1 already exists with cpus=1.0".to_owned())
        );
        assert_eq!(
            conflict(&|spec| spec.host_path = Some("/tmp/x".to_owned())),
            Err("Box session s1 already exists with host_path=None".to_owned())
        );
        assert_eq!(
            conflict(&|spec| spec.read_only_rootfs = false),
            Err("Box session s1 already exists with read_only_rootfs=True".to_owned())
        );
        assert_eq!(
            conflict(&|spec| {
                spec.cmd = "other".to_owned();
                spec.timeout_sec = 5;
                spec.env.insert("A".to_owned(), "b".to_owned());
            }),
            Ok(()),
            "what belongs to a command is not compared"
        );
    }
}
