//! Images for tests, made of busybox: as a directory, a tar, and what `docker save` writes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::driver::{Output, StateDir, sandcrate};
use crate::skip::find;

const APPLETS: [&str; 14] =
    ["sh", "cat", "echo", "env", "grep", "id", "ln", "ls", "mkdir", "rm", "sleep", "stat", "touch", "true"];

/// A state directory of its own, and files to import beside it.
pub(crate) struct Bench {
    pub(crate) state: StateDir,
    files: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self { state: StateDir::new(), files: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    pub(crate) fn call<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Output {
        sandcrate(args).env("SANDCRATE_STATE_DIR", self.state.path()).run()
    }

    pub(crate) fn import(&self, name: &str, source: &Path) -> Output {
        self.call(&["image".as_ref(), "import".as_ref(), name.as_ref(), source.as_os_str()])
    }

    /// Runs a script in a box of an image.
    pub(crate) fn run(&self, image: &str, flags: &[&str], script: &str) -> Output {
        let args = [&["run", "--image", image], flags, &["--", "sh", "-c", script]].concat();
        self.call(&args)
    }

    /// A root of busybox with its usual names.
    pub(crate) fn busybox(&self) -> PathBuf {
        let root = self.path("busybox");
        for directory in ["bin", "etc", "data"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        fs::copy(find("busybox").unwrap(), root.join("bin/busybox")).unwrap();
        for applet in APPLETS {
            symlink("busybox", root.join("bin").join(applet)).unwrap();
        }
        fs::write(root.join("etc/mark"), "image").unwrap();
        root
    }

    /// The same as an image of Docker with two layers: the upper one hides a file, a directory and its lower half,
    /// and says what its environment is.
    pub(crate) fn docker_archive(&self) -> PathBuf {
        let lower = self.busybox();
        for file in ["data/lower", "gone/file", "etc/hidden"] {
            fs::create_dir_all(lower.join(file).parent().unwrap()).unwrap();
            fs::write(lower.join(file), "lower").unwrap();
        }
        let upper = self.path("upper");
        for file in ["etc/.wh.hidden", ".wh.gone", "data/.wh..wh..opq", "data/upper"] {
            fs::create_dir_all(upper.join(file).parent().unwrap()).unwrap();
            fs::write(upper.join(file), "").unwrap();
        }
        let archive = self.path("archive");
        fs::create_dir(&archive).unwrap();
        tar(&lower, &archive.join("lower.tar"), &[]);
        tar(&upper, &archive.join("upper.tar.gz"), &["--gzip"]);
        let diff_ids = [self.digest("lower.tar", "cat"), self.digest("upper.tar.gz", "zcat")];
        let config = serde_json::json!({"os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids},
            "config": {"Env": ["GREETING=hello", "HOME=/nowhere"], "Cmd": ["sh"], "WorkingDir": "/data", "User": "7"}});
        // Names as engines have them: digests.
        let (one, two) = ("1".repeat(64), "2".repeat(64));
        for (name, number) in [("lower.tar", &one), ("upper.tar.gz", &two)] {
            fs::create_dir(archive.join(number)).unwrap();
            fs::rename(archive.join(name), archive.join(number).join("layer.tar")).unwrap();
        }
        let config_name = format!("{}.json", "3".repeat(64));
        fs::write(archive.join(&config_name), config.to_string()).unwrap();
        let manifest = serde_json::json!([{"Config": config_name, "RepoTags": ["bb:latest"],
            "Layers": [format!("{one}/layer.tar"), format!("{two}/layer.tar")]}]);
        fs::write(archive.join("manifest.json"), manifest.to_string()).unwrap();
        let out = self.path("saved.tar");
        tar(&archive, &out, &[]);
        out
    }

    fn digest(&self, name: &str, expand: &str) -> String {
        let script = format!("{expand} '{}' | sha256sum", self.path("archive").join(name).display());
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        format!("sha256:{}", text.split(' ').next().unwrap())
    }

    /// An archive that a program of Python's `tarfile` writes: `add(name, type, mode=…, link=…, data=…)`.
    pub(crate) fn python_tar(&self, name: &str, script: &str) -> PathBuf {
        let out = self.path(name);
        let prelude = "import io, sys, tarfile\nt = tarfile.open(sys.argv[1], 'w')\n\
             def add(name, type=tarfile.REGTYPE, mode=0o755, link='', data=b'', uid=0, gid=0):\n\
             \x20   i = tarfile.TarInfo(name); i.type = type; i.mode = mode; i.linkname = link; i.size = len(data)\n\
             \x20   i.uid = uid; i.gid = gid; i.devmajor = 1; i.devminor = 3\n\
             \x20   t.addfile(i, io.BytesIO(data))\n\
             busybox = open(sys.argv[2], 'rb').read()\n\
             def root():\n\
             \x20   add('bin', tarfile.DIRTYPE); add('bin/busybox', data=busybox)\n\
             \x20   for n in 'sh cat echo ls stat touch id grep'.split(): add('bin/' + n, tarfile.SYMTYPE, link='busybox')\n";
        let code = format!("{prelude}{script}\nt.close()\n");
        let made = Command::new("python3")
            .args(["-c", &code])
            .arg(&out)
            .arg(find("busybox").unwrap())
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        out
    }

    pub(crate) fn roots(&self) -> usize {
        fs::read_dir(self.state.path().join("images/roots")).unwrap().count()
    }
}

pub(crate) fn tar(directory: &Path, out: &Path, flags: &[&str]) {
    let status =
        Command::new("tar").arg("-C").arg(directory).args(flags).arg("-cf").arg(out).arg(".").status();
    assert!(status.unwrap().success());
}
