"""A cluster's configuration: files as administrators write them, and what a client understands."""

from __future__ import annotations

import itertools
import os
import pwd
import zipfile
from pathlib import Path

import pytest
from hadoop_oracle import says

from trainmaster.clusters.hadoop.jars import jars
from trainmaster.hadoop import sitefile
from trainmaster.hadoop.conf import (
    DEFAULTS,
    Configuration,
    default_fs,
    hdfs_native_settings,
    is_secure,
    load,
    name_nodes,
    name_services,
    principal,
    resource_managers,
    rpc_protection,
    split_address,
)
from trainmaster.hadoop.errors import ConfError, Unreachable
from trainmaster.hadoop.hdfs import filed
from trainmaster.hadoop.security.credentials import HDFS_DELEGATION_TOKEN, Token


def site(properties: dict[str, str], more: str = "") -> str:
    written = "\n".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in properties.items())
    return (
        '<?xml version="1.0"?>\n<configuration xmlns:xi="http://www.w3.org/2001/XInclude">'
        f"\n{written}\n{more}\n</configuration>\n"
    )


def of(
    folder: Path, properties: dict[str, str], more: str = "", environ: dict[str, str] | None = None
) -> Configuration:
    folder.joinpath("yarn-site.xml").write_text(site(properties, more))
    return load(folder, environ or {})


# -- where it is --


def test_the_directory_is_the_one_named(tmp_path: Path) -> None:
    for name in ("a", "b", "home/etc/hadoop"):
        tmp_path.joinpath(name).mkdir(parents=True)
        tmp_path.joinpath(name, "core-site.xml").write_text(site({"fs.defaultFS": f"hdfs://{name[0]}:1"}))
    environ = {"HADOOP_CONF_DIR": str(tmp_path / "b"), "HADOOP_HOME": str(tmp_path / "home")}
    assert default_fs(load(tmp_path / "a", environ)) == "hdfs://a:1"
    assert default_fs(load(None, environ)) == "hdfs://b:1"
    assert default_fs(load(None, {"HADOOP_HOME": str(tmp_path / "home")})) == "hdfs://h:1"


def test_no_directory_is_an_error_that_names_the_variable() -> None:
    with pytest.raises(ConfError, match="HADOOP_CONF_DIR is not set"):
        load(None, {})


def test_a_missing_directory_is_named_with_who_named_it(tmp_path: Path) -> None:
    with pytest.raises(ConfError, match="gone, from HADOOP_CONF_DIR, cannot be read: No such file or directory"):
        load(None, {"HADOOP_CONF_DIR": str(tmp_path / "gone")})


def test_a_file_in_the_place_of_the_directory_is_reported(tmp_path: Path) -> None:
    tmp_path.joinpath("file").touch()
    with pytest.raises(ConfError, match="cannot be read: Not a directory"):
        load(tmp_path / "file")


def test_a_directory_without_configuration_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfError, match=r"holds none of core-site.xml, hdfs-site.xml, yarn-site.xml"):
        load(tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    tmp_path.joinpath("core-site.xml").mkdir()
    with pytest.raises(ConfError, match=r"core-site.xml cannot be read: Is a directory"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "core-site.xml:1: not XML: no element found"),
        ("<configuration>\n<property>\n</configuration>", "core-site.xml:3: not XML: mismatched tag"),
        ("\n<html></html>", "core-site.xml:2: begins with <html>, not with <configuration>"),
        ("<configuration>\n<name>\x01</name>", "core-site.xml:2: not XML"),
    ],
)
def test_broken_xml_is_reported_with_file_and_line(tmp_path: Path, text: str, where: str) -> None:
    tmp_path.joinpath("core-site.xml").write_text(text)
    with pytest.raises(ConfError, match=where):
        load(tmp_path)


# -- what it says --


def test_our_defaults_are_those_of_the_real_jars(tmp_path: Path) -> None:
    theirs: dict[str, str] = {}
    modules = {"core": "common", "hdfs": "hdfs", "yarn": "yarn-common", "mapred": "mapreduce-client-core"}
    for name, module in modules.items():
        [jar] = jars().glob(f"hadoop-{module}-[0-9]*[0-9].jar")
        with zipfile.ZipFile(jar) as content:
            file = Path(content.extract(f"{name}-default.xml", tmp_path))
        theirs |= {found.name: found.value for found in sitefile.read(file)}
    assert {name: theirs.get(name) for name in DEFAULTS} == DEFAULTS


def test_later_files_win_but_not_over_final(tmp_path: Path) -> None:
    final = "<property><name>b</name><value>core</value><final>true</final></property>"
    tmp_path.joinpath("core-site.xml").write_text(site({"a": "core"}, final))
    tmp_path.joinpath("hdfs-site.xml").write_text(site({"a": "hdfs", "b": "hdfs"}))
    conf = load(tmp_path)
    assert (conf.get("a"), conf.get("b")) == ("hdfs", "core")
    assert conf.files == ("core-site.xml", "hdfs-site.xml")
    assert conf.place("a") == f"{tmp_path}/hdfs-site.xml:3"


def test_a_property_may_be_written_as_attributes(tmp_path: Path) -> None:
    assert of(tmp_path, {}, '<property name="a" value="1" final="true"/>').get("a") == "1"


def test_space_around_is_no_part_of_a_value(tmp_path: Path) -> None:
    conf = of(tmp_path, {" a ": "\n  x &amp; y\n ", "b": "<!-- no -->1"})
    assert (conf.get("a"), conf.get("b")) == ("x & y", "1")


def test_a_name_without_value_says_nothing(tmp_path: Path) -> None:
    conf = of(tmp_path, {}, "<property><name>a</name></property><property><value>1</value></property>")
    assert conf.get("a", "default") == "default"


def test_old_names_are_known(tmp_path: Path) -> None:
    assert default_fs(of(tmp_path, {"fs.default.name": "hdfs://old:1"})) == "hdfs://old:1"


def test_variables(tmp_path: Path) -> None:
    conf = of(
        tmp_path,
        {
            "host": "h", "a": "${host}:1", "nested": "${${which}}", "which": "host", "unknown": "x${no.such}y${host}",
            "loop": "${pool}", "pool": "${loop}", "user": "/u/${user.name}", "tmp": "${hadoop.tmp.dir}/x", "not": "${ host}$x",
        },
    )  # fmt: skip
    user = pwd.getpwuid(os.getuid()).pw_name
    assert conf.get("a") == "h:1"
    assert conf.get("nested") == "h"
    assert conf.get("unknown") == "x${no.such}y${host}"
    assert conf.get("loop") in ("${pool}", "${loop}")
    assert conf.get("user") == f"/u/{user}"
    assert conf.get("tmp") == f"/tmp/hadoop-{user}/x"
    assert conf.get("not") == "${ host}$x"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${env.SET}", "yes"), ("${env.SET:-no}", "yes"), ("${env.EMPTY}|", "|"), ("${env.EMPTY-no}|", "|"),
        ("${env.EMPTY:-no}", "no"), ("${env.GONE}", "${env.GONE}"), ("${env.GONE:-}|", "|"), ("${env.GONE-a-b:-c}", "a-b:-c"),
        ("${env.GONE:-${env.SET}}", "yes"),
    ],
)  # fmt: skip
def test_variables_of_the_environment(tmp_path: Path, value: str, expected: str) -> None:
    assert of(tmp_path, {"a": value}, environ={"SET": "yes", "EMPTY": ""}).get("a") == expected


def test_another_file_is_included_beside_this_one(tmp_path: Path) -> None:
    tmp_path.joinpath("sub").mkdir()
    tmp_path.joinpath("sub/more.xml").write_text(site({"a": "included"}, '<xi:include href="least.xml"/>'))
    tmp_path.joinpath("sub/least.xml").write_text(site({"c": "least"}))
    unused = "<xi:fallback><property><name>a</name><value>fallback</value></property></xi:fallback>"
    conf = of(tmp_path, {"a": "before", "b": "kept"}, f'<xi:include href="sub/more.xml">{unused}</xi:include>')
    assert [conf.get(key) for key in "abc"] == ["included", "kept", "least"]
    assert conf.place("c") == f"{tmp_path}/sub/least.xml:3"


def test_a_missing_include_falls_back(tmp_path: Path) -> None:
    fallback = '<xi:fallback><property name="a" value="1"/><xi:include href="gone2.xml"><xi:fallback/></xi:include></xi:fallback>'
    assert of(tmp_path, {}, f'<xi:include href="gone.xml">{fallback}</xi:include>').get("a") == "1"


@pytest.mark.parametrize(
    ("include", "message"),
    [
        (
            '<xi:include href="gone.xml"/>',
            "yarn-site.xml:4: the file that it includes is missing, and it has no fallback",
        ),
        ("<xi:include/>", "yarn-site.xml:4: an include without href"),
        ('<xi:include href="yarn-site.xml"/>', "yarn-site.xml includes .*yarn-site.xml, which includes it"),
    ],
)
def test_an_include_that_cannot_be(tmp_path: Path, include: str, message: str) -> None:
    with pytest.raises(ConfError, match=message):
        of(tmp_path, {}, include)


def test_a_file_that_includes_itself_by_another_path_is_found(tmp_path: Path) -> None:
    with pytest.raises(ConfError, match="which includes it"):
        of(tmp_path, {}, f'<xi:include href="../{tmp_path.name}/yarn-site.xml"/>')


@pytest.mark.parametrize(
    ("place", "message"),
    [("pipe", "it is not a file"), ("/dev/zero", "it is not a file"), ("large", "more than 16 MiB")],
)
def test_an_include_without_an_end_is_refused(tmp_path: Path, place: str, message: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 1 << 40)
    with pytest.raises(ConfError, match=message):
        of(tmp_path, {}, f'<xi:include href="{place}"/>')


def test_files_that_include_others_twice_end_in_an_error_soon(tmp_path: Path) -> None:
    for number in range(30):
        include = f'<xi:include href="{number + 1}.xml"/>' if number < 29 else ""
        (tmp_path / f"{number}.xml").write_text(site({}, include * 2))
    with pytest.raises(ConfError, match="includes more than 1000 files"):
        of(tmp_path, {}, '<xi:include href="0.xml"/>')


def test_entities_made_of_entities_end_in_an_error_soon(tmp_path: Path) -> None:
    names = "abcdef"
    entities = ['<!ENTITY a "aaaaaaaaaa">'] + [
        f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in itertools.pairwise(names)
    ]
    (tmp_path / "yarn-site.xml").write_text(
        f"<!DOCTYPE x [{''.join(entities)}]><configuration><property><name>n</name>"
        f"<value>{'&f;' * 3}</value></property></configuration>"
    )
    with pytest.raises(ConfError, match=r"yarn-site.xml:1: a value of more than 1048576 characters"):
        load(tmp_path, {})


def test_values_of_each_kind(tmp_path: Path) -> None:
    conf = of(
        tmp_path,
        {
            "int": " 7 ",
            "hex": "0x10",
            "yes": "TRUE",
            "no": "false",
            "other": "maybe",
            "list": "a, b,,c ",
            "word": "w",
        },
    )
    assert (conf.integer("int", 1), conf.integer("hex", 1), conf.integer("none", 3)) == (7, 16, 3)
    assert (conf.flag("yes"), conf.flag("no", True), conf.flag("other", True), conf.flag("none")) == (
        True,
        False,
        True,
        False,
    )
    assert conf.names("list") == ["a", "b", "c"]
    with pytest.raises(ConfError, match=r"yarn-site.xml:9: word is 'w', which is not"):
        conf.integer("word", 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h:1", ("h", "1")), ("h", ("h", "")), (":1", ("", "1")), ("[::1]:8032", ("::1", "8032")), ("[::1]", ("::1", "")),
        ("hdfs://h:1/", ("h", "1")), ("", ("", "")),
    ],
)  # fmt: skip
def test_an_address_is_taken_apart(text: str, expected: tuple[str, str]) -> None:
    assert split_address(text) == expected


def test_an_address_has_its_default_port(tmp_path: Path) -> None:
    conf = of(tmp_path, {"a": "h", "b": "h:99999", "c": "0.0.0.0:5"})
    assert conf.address("a", "x:7") == ("h", 7)
    assert conf.address("c") == ("localhost", 5)
    for key in "ab":
        with pytest.raises(ConfError, match=f"{key} is 'h.*', which is not host:port"):
            conf.address(key)


# -- the cluster --


def test_one_resource_manager(tmp_path: Path) -> None:
    conf = of(tmp_path, {"yarn.resourcemanager.hostname": "rm", "yarn.resourcemanager.scheduler.address": "sched:1"})
    assert resource_managers(conf) == [("rm", 8032)]
    assert resource_managers(conf, "scheduler.address") == [("sched", 1)]
    assert resource_managers(of(tmp_path, {"yarn.resourcemanager.hostname": "0.0.0.0"})) == [("localhost", 8032)]
    assert resource_managers(of(tmp_path, {"yarn.resourcemanager.hostname": "::1"})) == [("::1", 8032)]
    assert resource_managers(of(tmp_path, {"yarn.resourcemanager.address": "rm"})) == [("rm", 8032)]


@pytest.mark.parametrize(
    "properties", [{}, {"yarn.resourcemanager.ha.rm-ids": "rm1", "yarn.resourcemanager.hostname.rm1": "h"}]
)
def test_a_resource_manager_that_nobody_named_is_not_looked_for_here(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    """Without `ha.enabled` Hadoop passes over rm-ids."""
    with pytest.raises(
        ConfError, match=rf"no ResourceManager is named in {tmp_path}: yarn.resourcemanager.hostname is"
    ):
        resource_managers(of(tmp_path, properties))


def test_several_resource_managers(tmp_path: Path) -> None:
    ha = {
        "yarn.resourcemanager.ha.enabled": "true", "yarn.resourcemanager.ha.rm-ids": "rm1,rm2",
        "yarn.resourcemanager.hostname.rm1": "one", "yarn.resourcemanager.hostname.rm2": "two",
        "yarn.resourcemanager.address.rm2": "${yarn.resourcemanager.hostname.rm2}:9",
    }  # fmt: skip
    conf = of(tmp_path, ha)
    assert resource_managers(conf) == [("one", 8032), ("two", 9)]
    assert resource_managers(conf, "scheduler.address") == [("one", 8030), ("two", 8030)]
    del ha["yarn.resourcemanager.hostname.rm1"]
    with pytest.raises(ConfError, match=r"rm-ids names rm1, but neither yarn.resourcemanager.address.rm1 nor"):
        resource_managers(of(tmp_path, ha))


def test_the_namenodes_of_a_name_service(tmp_path: Path) -> None:
    conf = of(
        tmp_path,
        {
            "fs.defaultFS": "hdfs://ns", "dfs.nameservices": "ns,other", "dfs.ha.namenodes.ns": "nn1,nn2",
            "dfs.namenode.rpc-address.ns.nn1": "a:1", "dfs.namenode.rpc-address.ns.nn2": "b",
            "dfs.namenode.rpc-address.other": "c:3",
        },
    )  # fmt: skip
    assert name_services(conf) == {"ns": [("a", 1), ("b", 8020)], "other": [("c", 3)]}
    assert name_nodes(conf) == name_nodes(conf, "/path") == [("a", 1), ("b", 8020)]
    assert name_nodes(conf, "hdfs://other/path") == [("c", 3)]
    assert name_nodes(conf, "hdfs://d") == [("d", 8020)]


def test_a_default_file_system_that_is_not_hdfs(tmp_path: Path) -> None:
    with pytest.raises(ConfError, match=r"file: is not on HDFS: set fs.defaultFS"):
        name_nodes(of(tmp_path, {}))


def test_security(tmp_path: Path) -> None:
    conf = of(
        tmp_path, {"hadoop.security.authentication": "kerberos", "yarn.resourcemanager.principal": "yarn/_HOST@TEST"}
    )
    assert is_secure(conf)
    assert principal(conf, "yarn.resourcemanager.principal", "RM1") == "yarn/rm1@TEST"
    assert not is_secure(of(tmp_path, {}))


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ("privacy", ("privacy",)),
        ("integrity", ("privacy", "integrity")),
        ("privacy,integrity", ("privacy", "integrity")),
        ("Authentication", ("privacy", "integrity", "authentication")),
        ("privacy, authentication", ("privacy", "integrity", "authentication")),
    ],
)
def test_the_weakest_protection_that_is_named_is_the_floor(tmp_path: Path, said: str, taken: tuple[str, ...]) -> None:
    assert rpc_protection(of(tmp_path, {"hadoop.rpc.protection": said})) == taken


def test_a_protection_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfError, match=r"hadoop\.rpc\.protection is 'encrypted', which is not among privacy"):
        rpc_protection(of(tmp_path, {"hadoop.rpc.protection": "encrypted"}))


def test_hdfs_native_is_reported_what_it_would_not_resolve(tmp_path: Path) -> None:
    settings = hdfs_native_settings(of(tmp_path, {"fs.defaultFS": "hdfs://${host}:1", "host": "h", "yarn.x": "1"}))
    assert settings == {"fs.defaultFS": "hdfs://h:1"}


def test_hadoop_itself_reads_the_same(tmp_path: Path) -> None:
    """Whatever may be written, read by Hadoop's own class too."""
    conf = tmp_path / "conf"
    conf.mkdir()
    written = {
        "host": " h ", "a": "${host}:1", "nested": "${${which}}", "which": "host", "unknown": "x${no.such}y${host}",
        "loop": "${loop}", "pool": "a${loop}", "user": "${user.name}", "tmp": "${java.io.tmpdir}", "not": "${ host}$x",
        "env": "${env.PATH}", "no": "${env.GONE-}",
        "default": "${env.GONE:-${host}}", "dash": "${env.GONE-a:-b}", "three": "${env.GONE:-a-b}",
        "empty": "", "space": "  ", "open": "${host",
    }  # fmt: skip
    more = """
      <property name="attribute" value=" 1 "/>
      <property><name> spaced </name><value>
        2 </value></property>
      <property><name>final</name><value>first</value><final>true</final></property>
      <property><name>valueless</name></property>
      <property><name>cdata</name><value><![CDATA[<a & b>]]></value></property>
      <xi:include href="included.xml"><xi:fallback><property name="unused" value="1"/></xi:fallback></xi:include>
      <xi:include href="gone.xml"><xi:fallback><property name="used" value="1"/></xi:fallback></xi:include>
      <configuration><property><name>inner</name><value>3</value></property></configuration>
    """
    conf.joinpath("core-site.xml").write_text(site(written, more))
    conf.joinpath("included.xml").write_text(site({"included": "4", "a": "over"}))
    conf.joinpath("yarn-site.xml").write_text(site({"final": "second", "which": "a"}))
    keys = [*written, *["attribute", "spaced", "final", "valueless", "cdata", "unused", "used", "inner", "included"]]
    said = says("configuration", conf, *keys).split("\n")[:-1]
    ours = load(conf)
    assert dict(zip(keys, said, strict=True)) == {
        key: ours.get(key) if key in ours.properties else "null" for key in keys
    }


def test_a_namenode_that_nobody_knows_is_named(tmp_path: Path) -> None:
    token = Token(b"", b"", HDFS_DELEGATION_TOKEN)
    with pytest.raises(Unreachable, match=r"NameNode's host nowhere.invalid has no address here"):
        filed(token, of(tmp_path, {"fs.defaultFS": "hdfs://nowhere.invalid:1"}))
