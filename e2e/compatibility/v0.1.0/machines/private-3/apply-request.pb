
Ü
c000000000000002"Ã

c000000000000001etcd-2€æş‰¥

server.crt”-----BEGIN CERTIFICATE-----
MIIBuTCCAV6gAwIBAgIQcE45b0J3oEerhU3yWFQa/TAKBggqhkjOPQQDAjAPMQ0w
CwYDVQQDDARldGNkMB4XDTI1MTIzMTIzNTUwMFoXDTI3MDEwMTAwMDAwMFowETEP
MA0GA1UEAwwGZXRjZC0yMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEjXtCyxS9
bRMDnY0jNhNX1QJhyUJ2x07KyjJq9ILpDBcVHKrJpfSocQnCpFrLdsp8egxx1Jbn
vkMZYM7kQar5m6OBmTCBljAfBgNVHSMEGDAWgBQGRqXb41/2ePEdqoNT9smE4ktk
1jAXBgNVHREEEDAOggZldGNkLTKHBAoAAAMwDgYDVR0PAQH/BAQDAgeAMB0GA1Ud
JQQWMBQGCCsGAQUFBwMBBggrBgEFBQcDAjAdBgNVHQ4EFgQUYK2mJUccU5Lo0WZo
OaF4OmEcUAUwDAYDVR0TAQH/BAIwADAKBggqhkjOPQQDAgNJADBGAiEAsYT+vk0o
NPU1BFhB4dtW1g/RrgPh3+WPx7/cBW5p++oCIQCz+2XSZldOe+l81lPHGMvgULaZ
I49Xylumv8J+fMYu1w==
-----END CERTIFICATE-----
‚

server.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgve0eZGQ1DqWziATC
rbdbfePpY1La0E5cQpi5F1ujtbGhRANCAASNe0LLFL1tEwOdjSM2E1fVAmHJQnbH
TsrKMmr0gukMFxUcqsml9KhxCcKkWst2ynx6DHHUlue+QxlgzuRBqvmb
-----END PRIVATE KEY-----
Ÿ
peer.crt-----BEGIN CERTIFICATE-----
MIIBuDCCAV6gAwIBAgIQdKDCQPi4s0TQT0Z5Eo4NzDAKBggqhkjOPQQDAjAPMQ0w
CwYDVQQDDARldGNkMB4XDTI1MTIzMTIzNTUwMFoXDTI3MDEwMTAwMDAwMFowETEP
MA0GA1UEAwwGZXRjZC0yMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEV/fikckE
2zHPvYyU4ef9MVLN2m8h4tUtis2oDG0VgiWuYkbD5LvHXngRot+gFV74UzTiRX/4
KVQLmHQPcPKDSKOBmTCBljAfBgNVHSMEGDAWgBQGRqXb41/2ePEdqoNT9smE4ktk
1jAXBgNVHREEEDAOggZldGNkLTKHBAoAAAMwDgYDVR0PAQH/BAQDAgeAMB0GA1Ud
JQQWMBQGCCsGAQUFBwMBBggrBgEFBQcDAjAdBgNVHQ4EFgQUfLfGH2x5z8WyxkMR
olw9s7Us3NYwDAYDVR0TAQH/BAIwADAKBggqhkjOPQQDAgNIADBFAiAkDa82gaTO
NsGLDsQRQEjeAhyCQwPYsWOOoTtmfPl5yAIhAMfC2/rEcm6iJYSWnsYB5kZ3WoH+
wd5Gg0rddi9VDV8v
-----END CERTIFICATE-----
€
peer.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgwR/+YziL+pQbmb7R
5TS900+Gs8XZiTJBwpqkA3AlYhuhRANCAARX9+KRyQTbMc+9jJTh5/0xUs3abyHi
1S2KzagMbRWCJa5iRsPku8deeBGi36AVXvhTNOJFf/gpVAuYdA9w8oNI
-----END PRIVATE KEY-----
§
ca.crtš-----BEGIN CERTIFICATE-----
MIIBYTCCAQegAwIBAgIQXMRWaWWJ7w/xNUfPWGGE7zAKBggqhkjOPQQDAjAPMQ0w
CwYDVQQDDARldGNkMB4XDTI1MTIzMTIzNTUwMFoXDTM1MTIzMDAwMDAwMFowDzEN
MAsGA1UEAwwEZXRjZDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABFLMtIm41Ip1
DSiRwYP9M1CCYlJ210q+m9YQh0i4fTWIM8vetaZWW3eXJXRwpU7y3jrqQoE9up7z
aMQYlHXvWB+jRTBDMA4GA1UdDwEB/wQEAwIBhjAdBgNVHQ4EFgQUBkal2+Nf9njx
HaqDU/bJhOJLZNYwEgYDVR0TAQH/BAgwBgEB/wIBADAKBggqhkjOPQQDAgNIADBF
AiB3C/1kg+1I1+gEQXZGrE/dkeUnvwRmlBt8kvy0UoKPfwIhAJJOrsosG1Bwp1le
zr3lAXMvA0G4HjAW1HfDEm5dxfs5
-----END CERTIFICATE-----
"data*ú
etcdregistry.k8s.io/etcd:3.7.0-0etcd--name=etcd-2--data-dir=/var/lib/etcd+--listen-client-urls=https://10.0.0.3:20000.--advertise-client-urls=https://10.0.0.3:20000)--listen-peer-urls=https://10.0.0.3:200014--initial-advertise-peer-urls=https://10.0.0.3:20001k--initial-cluster=etcd-0=https://10.0.0.1:20001,etcd-1=https://10.0.0.2:20001,etcd-2=https://10.0.0.3:20001(--initial-cluster-token=c000000000000001--initial-cluster-state=new#--cert-file=/etc/keelway/server.crt"--key-file=/etc/keelway/server.key%--trusted-ca-file=/etc/keelway/ca.crt--client-cert-auth=true&--peer-cert-file=/etc/keelway/peer.crt%--peer-key-file=/etc/keelway/peer.key*--peer-trusted-ca-file=/etc/keelway/ca.crt--peer-client-cert-auth=true--tls-min-version=TLS1.2>--feature-gates=InitialCorruptCheck=true,CompactHashCheck=true --quota-backend-bytes=4294967296--auto-compaction-mode=periodic--auto-compaction-retention=30m*--bootstrap-defrag-threshold-megabytes=200#--watch-progress-notify-interval=5s"
files/etc/keelway"
data/var/lib/etcd*d€€€€0:F
>
10.0.0.3:20000/livezetcd-2"ca.crt*
peer.crtpeer.key
 (2registry.k8s.io/pause:3.10.2@H@918269084bda3088afa212a0332dd783db8b11f16858e23259e52f35563c282a