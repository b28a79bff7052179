"""Skills through LangBot's own client: every call it has, and a skill inside a box."""

import io
import zipfile

import pytest
from harness import MIB
from langbot_plugin.box.errors import BoxError, BoxValidationError


def archive(files: dict[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in files.items():
            out.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
async def root(box, tmp_path):
    """LangBot's directory, told to the server as LangBot tells it."""
    root = tmp_path / "host-root"
    root.mkdir()
    await box.client.init({"local": {"host_root": str(root)}})
    return root


async def test_a_skill_lives_where_langbot_keeps_its_own(box, root):
    assert await box.client.list_skills() == []
    assert await box.client.get_skill("pdf") is None
    made = await box.client.create_skill({"name": "pdf", "description": "PDF: files", "instructions": "Read.\n"})
    assert made["package_root"] == str(root / "skills" / "pdf")
    text = (root / "skills/pdf/SKILL.md").read_text()
    assert text == "---\nname: pdf\ndescription: 'PDF: files'\n---\n\nRead.\n"
    changed = await box.client.update_skill("pdf", {"instructions": "Write.\n"})
    assert (changed["description"], changed["instructions"]) == ("PDF: files", "Write.\n")
    with pytest.raises(BoxValidationError, match='Skill with name "pdf" already exists'):
        await box.client.create_skill({"name": "pdf"})
    assert [skill["name"] for skill in await box.client.list_skills()] == ["pdf"]
    await box.client.delete_skill("pdf")
    assert await box.client.list_skills() == [] and not (root / "skills/pdf").exists()


async def test_files_are_read_and_written(box, root):
    """K6, K7: bytes come back as they are, and nothing is called truncated that is whole."""
    await box.client.create_skill({"name": "s"})
    written = await box.client.write_skill_file("s", "sub/a.txt", "1\r\n好\n")
    assert written == {"skill": {"name": "s"}, "path": "sub/a.txt", "bytes_written": 7}
    assert (await box.client.read_skill_file("s", "sub/a.txt"))["content"] == "1\r\n好\n"
    listing = await box.client.list_skill_files("s", max_entries=2)
    assert ([entry["name"] for entry in listing["entries"]], listing["truncated"]) == (["SKILL.md", "sub"], False)
    with pytest.raises(BoxValidationError, match="path must stay within the skill package root"):
        await box.client.read_skill_file("s", "../x")


async def test_a_large_file_arrives_whole(box, root):
    """T1: the reference never answers a request over 64 KiB, which a skill's file often is."""
    await box.client.create_skill({"name": "s"})
    content = "好 line\n" * (MIB // 8)
    await box.client.write_skill_file("s", "large.txt", content)
    assert (await box.client.read_skill_file("s", "large.txt"))["content"] == content


async def test_archives_are_previewed_and_installed(box, root):
    bundle = archive(
        {
            "repo/skills/one/SKILL.md": "---\nname: one\nversion: 3\n---\n1",
            "repo/skills/two/SKILL.md": "---\nname: two\n---\n2",
            "repo/skills/two/data.bin": bytes(range(256)) * 200,
        }
    )
    seen = await box.client.preview_skill_zip(bundle, "repo.zip")
    assert [(skill["name"], skill["source_path"]) for skill in seen] == [("one", "skills/one"), ("two", "skills/two")]
    with pytest.raises(BoxValidationError, match="Multiple skills found. Please choose"):
        await box.client.install_skill_zip(bundle, "repo.zip")
    made = await box.client.install_skill_zip(bundle, "repo.zip", source_paths=["skills/two"])
    assert [skill["package_root"] for skill in made] == [str(root / "skills/repo-two-upload")]
    assert (root / "skills/repo-two-upload/data.bin").read_bytes() == bytes(range(256)) * 200
    changed = await box.client.install_skill_zip(bundle, "repo.zip", source_path="skills/one")
    await box.client.update_skill(changed[0]["name"], {"description": "new"})
    assert "version: 3\n" in (root / "skills/repo-one-upload/SKILL.md").read_text(), "K3"


async def test_hostile_archives_leave_nothing(box, root, tmp_path):
    """S8, AP-20, AP-22: names that climb, a suffix that climbs, a bomb."""
    climbing = archive({"SKILL.md": "x", "../../evil": "x"})
    with pytest.raises(BoxValidationError, match="Archive contains an unsafe path: ../../evil"):
        await box.client.install_skill_zip(climbing, "x.zip")
    with pytest.raises(BoxValidationError, match="target_suffix"):
        await box.client.install_skill_zip(archive({"SKILL.md": "x"}), "x.zip", target_suffix="../../../esc")
    bomb = archive({"SKILL.md": "x", "zeroes": bytes(64 * MIB)})
    assert len(bomb) < MIB
    with pytest.raises(BoxError, match="exceeds the limit of 100 to 1"):
        await box.client.install_skill_zip(bomb, "x.zip")
    assert await box.client.list_skills() == []
    assert not list(tmp_path.rglob("evil")) and not list(tmp_path.rglob("esc"))


async def test_a_workspace_becomes_a_skill_and_the_host_does_not(box, root):
    """What LangBot's `register_skill` does; S9, AP-25: nothing else of the host can be had this way."""
    package = root / "default" / "mine"
    package.mkdir(parents=True)
    (package / "SKILL.md").write_text("---\nname: Mine\nlicense: MIT\n---\nbody")
    scanned = await box.client.scan_skill_directory(str(root / "default"))
    assert (scanned["name"], scanned["package_root"]) == ("Mine", str(package))
    made = await box.client.create_skill({"name": "mine", "package_root": scanned["package_root"]})
    assert made["package_root"] == str(root / "skills/mine")
    assert "license: MIT\n" in (root / "skills/mine/SKILL.md").read_text()
    for path in ("/etc", "/root", "/nope"):
        with pytest.raises(BoxValidationError, match="is outside the skill roots"):
            await box.client.scan_skill_directory(path)
        with pytest.raises(BoxValidationError, match="is outside the skill roots"):
            await box.client.create_skill({"name": "steal", "package_root": path})


async def test_a_skill_is_mounted_as_the_request_says(box, root):
    """What LangBot adds to every session of a pipeline with skills."""
    made = await box.client.create_skill({"name": "tool"})
    await box.client.write_skill_file("tool", "run.sh", "echo from the skill\n")
    mount = {"host_path": made["package_root"], "mount_path": "/workspace/.skills/tool", "mode": "rw"}
    result = await box.sh("s", "sh .skills/tool/run.sh && echo changed > .skills/tool/out.txt", extra_mounts=[mount])
    assert (result.exit_code, result.stdout) == (0, "from the skill")
    assert (await box.client.read_skill_file("tool", "out.txt"))["content"] == "changed\n"
