"""Keys for a federation: python make_certificates.py --host HOST [HOST ...] --nodes N writes keys/.

keys/ca.crt          everyone: proves that the server is the server
keys/server.crt,key  the server: its certificate for the given hosts, and for 127.0.0.1 and localhost
keys/node-K          node K alone: its private key
keys/node-K.pub      whoever runs the server: registered there, lets node K in
.flwr/config.toml    whoever runs flwr: the connection "fedflat" to the server

Nothing that exists is overwritten, so run it again with more nodes to add some. The key of the certificate authority
is forgotten; to make certificates anew, for other hosts or before they end after 365 days, delete keys/ca.crt,
keys/server.crt and keys/server.key, run it again and give every node the new keys/ca.crt. Nodes' own keys do not end.
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
KEPT = "keys/ca.crt exists, so --host is ignored; to make it anew delete keys/ca.crt, keys/server.crt, keys/server.key"
DAYS = 365
PORT = 8000
CONNECTION = """[superlink]
default = "fedflat"

[superlink.fedflat]
address = "{host}:{port}"
root-certificates = "{root}"
"""


def write(name: str, content: bytes, mode: int = 0o644) -> None:
    """A new file that from the start only those may read who should."""
    with os.fdopen(os.open(KEYS / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    print(KEYS / name)


def alternative(host: str) -> x509.GeneralName:
    """A host as certificates name it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def certificate(name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Name) -> x509.CertificateBuilder:
    """A certificate that still has to be signed."""
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


def server(hosts: list[str]) -> None:
    """A certificate authority for this federation alone, and the server's certificate."""
    authority, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fedflat federation")])
    root = certificate("fedflat federation", authority, issuer)
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    names = x509.SubjectAlternativeName(
        [alternative(host) for host in dict.fromkeys([*hosts, "127.0.0.1", "localhost"])]
    )
    own = certificate(hosts[0], key, issuer).add_extension(names, critical=False)
    write("ca.crt", root.sign(authority, hashes.SHA384()).public_bytes(form.Encoding.PEM))
    write("server.crt", own.sign(authority, hashes.SHA384()).public_bytes(form.Encoding.PEM))
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    write("server.key", private, 0o600)


def connection(host: str) -> None:
    """What flwr needs to know of the server; Flower wants an absolute path."""
    path = Path(".flwr") / "config.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(CONNECTION.format(host=host, port=PORT, root=(KEYS / "ca.crt").resolve().as_posix()))
    print(path)


def node(number: int) -> None:
    """A node's key pair, as ssh-keygen would write it."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    write(f"node-{number}", private, 0o600)
    write(f"node-{number}.pub", key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", nargs="+", help="names and addresses by which nodes reach it")
    parser.add_argument("--nodes", type=int, default=0, help="how many nodes need keys")
    options = parser.parse_args()
    KEYS.mkdir(mode=0o700, exist_ok=True)
    if not (KEYS / "ca.crt").exists():
        hosts = options.host or ["127.0.0.1"]
        server(hosts)
        connection(hosts[0])
    elif options.host:
        print(KEPT)
    for number in range(options.nodes):
        if not (KEYS / f"node-{number}").exists():
            node(number)
