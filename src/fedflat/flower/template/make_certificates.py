"""Make the keys of a federation: python make_certificates.py --host HOST [HOST ...] --nodes N writes keys/.

file                 who needs it and what for
keys/ca.crt          everyone, to check that the server is the right one
keys/server.crt,key  the server: its certificate for the given hosts, 127.0.0.1 and localhost
keys/node-K          only node K: its private key
keys/node-K.pub      the server, where it is registered to let node K connect
.flwr/config.toml    whoever runs flwr: the connection "fedflat" to the server

Existing files are not overwritten, so run it again with more nodes to add some. The key of the certificate authority is
not stored. Certificates are valid for 365 days. To renew them, or for other hosts, delete keys/ca.crt, keys/server.crt
and keys/server.key, run it again and copy the new keys/ca.crt to every node. Keys of nodes do not expire.
"""

import argparse
import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec

KEYS = Path("keys")
HOST_IGNORED = (
    "keys/ca.crt exists, so --host is ignored; to renew it delete keys/ca.crt, keys/server.crt, keys/server.key"
)
DAYS = 365
PORT = 8000
CONNECTION = """[superlink]
default = "fedflat"

[superlink.fedflat]
address = "{host}:{port}"
root-certificates = "{root}"
"""


def write(name: str, content: bytes, mode: int = 0o644) -> None:
    """Write a new file in keys/ that has its access rights from the start."""
    with os.fdopen(os.open(KEYS / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    print(KEYS / name)


def subject_name(host: str) -> x509.GeneralName:
    """Return a host as certificates write it: an address or a name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def certificate(name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Name) -> x509.CertificateBuilder:
    """Return a certificate that still has to be signed."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def write_server_keys(hosts: list[str]) -> None:
    """Make a certificate authority for this federation, and write the server's certificate and key."""
    authority, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fedflat federation")])
    root = certificate("fedflat federation", authority, issuer)
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    names = x509.SubjectAlternativeName(
        [subject_name(host) for host in dict.fromkeys([*hosts, "127.0.0.1", "localhost"])]
    )
    own = certificate(hosts[0], key, issuer).add_extension(names, critical=False)
    write("ca.crt", root.sign(authority, hashes.SHA384()).public_bytes(form.Encoding.PEM))
    write("server.crt", own.sign(authority, hashes.SHA384()).public_bytes(form.Encoding.PEM))
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    write("server.key", private, 0o600)


def write_connection(host: str) -> None:
    """Write how flwr connects to the server; Flower needs the absolute path of the certificate."""
    path = Path(".flwr") / "config.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(CONNECTION.format(host=host, port=PORT, root=(KEYS / "ca.crt").resolve().as_posix()))
    print(path)


def write_node_keys(number: int) -> None:
    """Write a node's key pair in the format of ssh-keygen."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    write(f"node-{number}", private, 0o600)
    write(f"node-{number}.pub", key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", nargs="+", help="names and addresses under which nodes reach the server")
    parser.add_argument("--nodes", type=int, default=0, help="number of nodes that need keys")
    options = parser.parse_args()
    KEYS.mkdir(mode=0o700, exist_ok=True)
    if not (KEYS / "ca.crt").exists():
        hosts = options.host or ["127.0.0.1"]
        write_server_keys(hosts)
        write_connection(hosts[0])
    elif options.host:
        print(HOST_IGNORED)
    for number in range(options.nodes):
        if not (KEYS / f"node-{number}").exists():
            write_node_keys(number)
