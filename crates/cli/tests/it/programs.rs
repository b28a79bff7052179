//! Ordinary programs of the host do in a box what people use them for.

use std::path::Path;

use crate::driver::{Call, sandcrate};
use crate::skip::{Feature, say, skip_without};

/// Programs need, what is run (a program and its arguments), what it prints.
struct Case {
    name: &'static str,
    needs: &'static [&'static str],
    argv: &'static [&'static str],
    prints: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "python computes",
        needs: &["python3"],
        argv: &["python3", "-c", "print(2**64)"],
        prints: "18446744073709551616\n",
    },
    Case {
        name: "python starts processes",
        needs: &["python3"],
        argv: &[
            "python3",
            "-c",
            "import multiprocessing as m\n\
             if __name__ == '__main__':\n  with m.Pool(4) as p: print(sum(p.map(abs, range(-9, 1))))",
        ],
        prints: "45\n",
    },
    Case {
        name: "python has threads, locks and temporary files",
        needs: &["python3"],
        argv: &[
            "python3",
            "-c",
            "import threading, tempfile, multiprocessing as m\n\
             with m.Lock(), tempfile.NamedTemporaryFile() as f: f.write(b'x')\n\
             t = [threading.Thread(target=lambda: None) for _ in range(20)]\n\
             [x.start() for x in t]; [x.join() for x in t]; print('fine')",
        ],
        prints: "fine\n",
    },
    Case {
        name: "python has a database",
        needs: &["python3"],
        argv: &[
            "python3",
            "-c",
            "import sqlite3\nd = sqlite3.connect('x.db'); d.execute('create table t(a)')\n\
             d.execute('insert into t values (42)'); d.commit()\n\
             print(d.execute('select a from t').fetchone()[0])",
        ],
        prints: "42\n",
    },
    Case {
        name: "python knows who and where it is",
        needs: &["python3"],
        argv: &[
            "python3",
            "-c",
            "import getpass, os, pathlib\nhome = pathlib.Path.home()\n\
             print(getpass.getuser(), os.getcwd(), home.is_dir(), os.access(home, os.W_OK))",
        ],
        prints: "box /workspace True True\n",
    },
    Case {
        name: "a virtual environment can be made and used",
        needs: &["python3"],
        argv: &[
            "python3",
            "-c",
            "import subprocess, venv\nvenv.create('v', with_pip=False)\n\
             subprocess.check_call(['v/bin/python', '-c', 'import sys; print(sys.prefix)'])",
        ],
        prints: "/workspace/v\n",
    },
    Case {
        name: "node computes",
        needs: &["node"],
        argv: &["node", "-e", "console.log([1,2,3].map(x => x * x).join())"],
        prints: "1,4,9\n",
    },
    Case {
        name: "node has workers, files and child processes",
        needs: &["node"],
        argv: &[
            "node",
            "-e",
            "const {Worker} = require('worker_threads'); require('fs').writeFileSync('f', 'x'); \
             const w = new Worker('require(\"worker_threads\").parentPort.postMessage(6*7)', {eval: true}); \
             const child = require('child_process').execSync('echo child').toString().trim(); \
             w.on('message', m => console.log(m, child))",
        ],
        prints: "42 child\n",
    },
    Case {
        name: "git makes a repository and a commit",
        needs: &["git"],
        argv: &[
            "sh",
            "-c",
            "git init -q . && git config user.email a@b.c && git config user.name A && echo x > f && \
             git add f && git commit -q -m one && git log --format=%s && git status --short",
        ],
        prints: "one\n",
    },
    Case {
        name: "gcc compiles, and what it made runs",
        needs: &["gcc"],
        argv: &[
            "sh",
            "-c",
            "printf '#include <stdio.h>\\nint main(void) { puts(\"hello from C\"); return 0; }\\n' > hello.c && \
             gcc -O2 -o hello hello.c && ./hello",
        ],
        prints: "hello from C\n",
    },
    Case {
        name: "make runs jobs side by side",
        needs: &["make"],
        argv: &[
            "sh",
            "-c",
            "printf 'all: a b\\na b:\\n\\t@echo $@ > $@\\n' > Makefile && make -s -j2 && cat a b",
        ],
        prints: "a\nb\n",
    },
    Case {
        name: "bash has arrays, substitution and pipes",
        needs: &["bash"],
        argv: &[
            "bash",
            "-c",
            "a=(x y z); cat <(echo ${#a[@]}) <(seq 3 | sort -r | head -1); [[ -w ~ ]] && echo home",
        ],
        prints: "3\n3\nhome\n",
    },
    Case {
        name: "perl matches",
        needs: &["perl"],
        argv: &["perl", "-e", "print join(',', 'a1b22' =~ /(\\d+)/g), \"\\n\""],
        prints: "1,22\n",
    },
    Case {
        name: "sqlite keeps a database",
        needs: &["sqlite3"],
        argv: &[
            "sh",
            "-c",
            "sqlite3 x.db 'create table t(a); insert into t values(7),(8)' && sqlite3 x.db 'select sum(a) from t'",
        ],
        prints: "15\n",
    },
    Case {
        name: "archives go in and out",
        needs: &["tar", "gzip"],
        argv: &[
            "sh",
            "-c",
            "mkdir d && echo x > d/f && tar czf d.tgz d && rm -r d && tar xzf d.tgz && cat d/f",
        ],
        prints: "x\n",
    },
    Case {
        name: "text tools",
        needs: &["awk", "sed", "find", "xargs"],
        argv: &[
            "sh",
            "-c",
            "seq 10 | awk '{s += $1} END {print s}'; echo abc | sed s/b/B/; touch a.txt b.txt; \
             find . -name '*.txt' | sort | xargs echo",
        ],
        prints: "55\naBc\n./a.txt ./b.txt\n",
    },
    Case {
        name: "process tools see the box only",
        needs: &["ps"],
        argv: &["sh", "-c", "sleep 5 & ps -e -o comm= | grep -c sleep"],
        prints: "1\n",
    },
    Case {
        name: "clocks and locale",
        needs: &["date", "locale"],
        argv: &["sh", "-c", "test $(date +%Y) -ge 2025 && locale charmap"],
        prints: "UTF-8\n",
    },
];

fn run(argv: &[&str]) -> Call {
    // Interpreters on a loaded machine are slow; npm and node want memory.
    let flags = ["run", "--timeout", "90s", "-m", "1G", "--"];
    sandcrate(&flags.iter().chain(argv).copied().collect::<Vec<_>>())
}

#[test]
fn ordinary_programs_work() {
    let mut wrong = Vec::new();
    for case in CASES {
        let needs: Vec<_> = std::iter::once(Feature::Box)
            .chain(case.needs.iter().map(|name| Feature::Program(name)))
            .collect();
        if skip_without(&needs) {
            continue;
        }
        let output = run(case.argv).run();
        if output.code != 0 || output.stdout != case.prints {
            wrong.push(format!("{}: {output:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A wheel, made by hand: a zip of a module and its metadata.
fn make_wheel(dir: &Path) {
    let script = r#"
import zipfile
info = 'tiny_box_test-1.0.dist-info/'
wheel = 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n'
with zipfile.ZipFile('tiny_box_test-1.0-py3-none-any.whl', 'w') as z:
    z.writestr('tiny_box_test.py', 'WORD = "installed"\n')
    z.writestr(info + 'METADATA', 'Metadata-Version: 2.1\nName: tiny-box-test\nVersion: 1.0\n')
    z.writestr(info + 'WHEEL', wheel)
    z.writestr(info + 'RECORD', '')
"#;
    let made = std::process::Command::new("python3").args(["-c", script]).current_dir(dir).status().unwrap();
    assert!(made.success());
}

fn has_pip(python: &str) -> bool {
    let asked = std::process::Command::new(python).args(["-m", "pip", "--version"]).output();
    let found = asked.is_ok_and(|output| output.status.success());
    if !found {
        say(&format!("needs pip for {python}"));
    }
    found
}

/// Debian marks its Python as externally managed, and pip then refuses; in a box there is nothing to protect.
#[test]
fn pip_installs_a_local_wheel() {
    if skip_without(&[Feature::Box, Feature::Program("python3")]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    make_wheel(dir.path());
    let volume = format!("{}:/wheels:ro", dir.path().display());
    let script = "import subprocess, sys, site\n\
                  install = 'pip install --quiet --no-index --find-links /wheels tiny-box-test'\n\
                  subprocess.check_call([sys.executable, '-m'] + install.split())\n\
                  site.main()\nimport tiny_box_test; print(tiny_box_test.WORD)";
    for python in ["/usr/bin/python3", "python3"].into_iter().filter(|python| has_pip(python)) {
        let output = sandcrate(&["run", "--timeout", "90s", "-v", &volume, "--", python, "-c", script]).run();
        assert_eq!((output.code, output.stdout.as_str()), (0, "installed\n"), "{python}: {output:?}");
    }
}

#[test]
fn pip_installs_into_the_system_of_a_writable_root() {
    if skip_without(&[Feature::Box, Feature::Root, Feature::Program("python3")])
        || !has_pip("/usr/bin/python3")
    {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    make_wheel(dir.path());
    let volume = format!("{}:/wheels:ro", dir.path().display());
    let script = "cd / && /usr/bin/python3 -m pip install --quiet --root-user-action=ignore --no-index \
                  --find-links /wheels tiny-box-test && \
                  /usr/bin/python3 -c 'import tiny_box_test; print(tiny_box_test.__file__)'";
    let flags = ["run", "--writable-root", "--timeout", "90s", "-v", &volume, "--", "sh", "-c", script];
    let output = sandcrate(&flags).run();
    assert!(output.code == 0 && output.stdout.starts_with("/usr/"), "{output:?}");
}

#[test]
fn npm_installs_a_local_package_offline() {
    if skip_without(&[Feature::Box, Feature::Program("npm"), Feature::Program("tar")]) {
        return;
    }
    let package = r#"{"name":"tiny-box-test","version":"1.0.0","main":"i.js"}"#;
    let script = format!(
        "mkdir package app && echo '{package}' > package/package.json && \
         echo 'module.exports = \"installed\"' > package/i.js && tar czf tiny.tgz package && cd app && \
         npm init -y >/dev/null && npm install --offline --no-audit --no-fund --silent ../tiny.tgz && \
         node -e 'console.log(require(\"tiny-box-test\"))'"
    );
    let output = run(&["sh", "-c", &script]).run();
    assert_eq!((output.code, output.stdout.as_str()), (0, "installed\n"), "{output:?}");
}

#[test]
fn uv_runs_a_script() {
    if skip_without(&[Feature::Box, Feature::Program("uv")]) {
        return;
    }
    let output = run(&["uv", "run", "--offline", "--no-project", "python", "-c", "print('by uv')"]).run();
    assert_eq!((output.code, output.stdout.as_str()), (0, "by uv\n"), "{output:?}");
}
