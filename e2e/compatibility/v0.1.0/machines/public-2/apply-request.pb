
Ž<
c000000000000002"Í'

c000000000000001	gateway-1†æþ‰¢
gateway.json{
  "wireGuard": {
    "privateKeyFile": "/etc/keelway/wireguard.key",
    "listenPort": 20000,
    "addresses": [
      "100.80.0.3"
    ],
    "addressCIDRs": [
      "100.80.0.0/16"
    ],
    "podCIDRs": [
      "10.244.0.0/16"
    ]
  },
  "gatewaysFile": "/etc/keelway/gateways.json",
  "peers": {
    "kubeconfig": "/etc/keelway/kubeconfig.json",
    "file": "/var/lib/keelway-gateway/peers.json"
  },
  "connect": {
    "listen": [
      "10.0.1.2:20001"
    ],
    "tls": {
      "certificateFile": "/etc/keelway/server.crt",
      "keyFile": "/etc/keelway/server.key",
      "authorityFile": "/etc/keelway/infrastructure-ca.crt"
    },
    "clients": [
      "keelway:egress"
    ]
  },
  "health": "127.0.0.1:20002",
  "metrics": "/var/lib/keelway-gateway/metrics.sock"
}
Ë
gateways.json·[
  {
    "name": "gateway-0",
    "publicKey": "t6YnQ6KvKYTAu4JAJ1bU/jeugc1M99TRBmrIpltyv1Q=",
    "endpoint": "203.0.113.1:20000",
    "addresses": [
      "100.80.0.2"
    ]
  }
]
†
kubeconfig.jsonð{
  "apiVersion": "v1",
  "kind": "Config",
  "clusters": [
    {
      "name": "cluster",
      "cluster": {
        "server": "https://203.0.113.2:20000",
        "certificate-authority": "/etc/keelway/ca.crt",
        "tls-server-name": "kubernetes"
      }
    }
  ],
  "users": [
    {
      "name": "user",
      "user": {
        "client-certificate": "/etc/keelway/client.crt",
        "client-key": "/etc/keelway/client.key"
      }
    }
  ],
  "contexts": [
    {
      "name": "context",
      "context": {
        "cluster": "cluster",
        "user": "user"
      }
    }
  ],
  "current-context": "context"
}
?
wireguard.key,V2QZb0s8w8C7T4cgXHKiMw7absfJuRG0Hdg0+Jfpp80=·
ca.crtª-----BEGIN CERTIFICATE-----
MIIBbTCCAROgAwIBAgIQexWVhMEibfbsz8TKqM17YzAKBggqhkjOPQQDAjAVMRMw
EQYDVQQDDAprdWJlcm5ldGVzMB4XDTI1MTIzMTIzNTUwMFoXDTM1MTIzMDAwMDAw
MFowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABDAq+sIDfwtbrf/v69EjOFDBXpwj3sKFg6OfaXcwKFw3pQzrxpRIGkHk/2mG
aknvGp3AinPG+ALvdBxvh8xzJa6jRTBDMA4GA1UdDwEB/wQEAwIBhjAdBgNVHQ4E
FgQUzYz+OY3Tl0ytxSxVxTZinGs6F58wEgYDVR0TAQH/BAgwBgEB/wIBADAKBggq
hkjOPQQDAgNIADBFAiBNBAUo2f9BuhDmomcQ2pCAwVfYx81R8tsKsZdJjsn2AgIh
AOCQ7jI3yqcr4OI1Ig3/GJ8WwyoNX7o7jyMznbYURySR
-----END CERTIFICATE-----
Ò
infrastructure-ca.crt¶-----BEGIN CERTIFICATE-----
MIIBdTCCARugAwIBAgIQToH1n8izc5aaDQX0Zz71oTAKBggqhkjOPQQDAjAZMRcw
FQYDVQQDDA5pbmZyYXN0cnVjdHVyZTAeFw0yNTEyMzEyMzU1MDBaFw0zNTEyMzAw
MDAwMDBaMBkxFzAVBgNVBAMMDmluZnJhc3RydWN0dXJlMFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEioj+/VA8b0/EjpsGeGzCi0W1ZUnCfmGEvCAkdek6NGRxaFN/
9a+EDYEHIIkVYB73G0jV5M/IXzMdHwmH5vm9F6NFMEMwDgYDVR0PAQH/BAQDAgGG
MB0GA1UdDgQWBBTxeSz3/xjqsl9DUOeK8QZmyjfvpjASBgNVHRMBAf8ECDAGAQH/
AgEAMAoGCCqGSM49BAMCA0gAMEUCIBK+iAEh19xwl8gnPE9BGaFFUrBMp5ROf6sm
J6ki81+BAiEAssjkTlZXEm9o1zygLw1duLFEvTWDAffpn3D5o/XGUJM=
-----END CERTIFICATE-----
„

client.crtó-----BEGIN CERTIFICATE-----
MIIBozCCAUigAwIBAgIQQ1ZaxquQnAq40rrWO8bd1TAKBggqhkjOPQQDAjAVMRMw
EQYDVQQDDAprdWJlcm5ldGVzMB4XDTI1MTIzMTIzNTUwMFoXDTI3MDEwMTAwMDAw
MFowGjEYMBYGA1UEAwwPa2VlbHdheTpnYXRld2F5MFkwEwYHKoZIzj0CAQYIKoZI
zj0DAQcDQgAEuV6ks9UcPyjZLeU/BJrDZ5XfG3obenB94os7z2j+uaXYgzO7/FTX
qU6ySPCKHN+NEYyj7jt+XwvtsXkAaDXz3aN1MHMwHwYDVR0jBBgwFoAUzYz+OY3T
l0ytxSxVxTZinGs6F58wDgYDVR0PAQH/BAQDAgeAMBMGA1UdJQQMMAoGCCsGAQUF
BwMCMB0GA1UdDgQWBBRdwnJxbgsjOoGxTsIYWbZgkxJQbDAMBgNVHRMBAf8EAjAA
MAoGCCqGSM49BAMCA0kAMEYCIQCL5E730Qkwg3R83xYAB1wvbFU36jCptiQMCYSf
DrKSvAIhAPrCgoAS+KnLYXVUI+Pixe9ywe5rV+fBsPAMjhtAOWP1
-----END CERTIFICATE-----
‚

client.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgOcss3e5JNQHnjDV5
WGJK11Svwcwly1893w0ZA7uNTpWhRANCAAS5XqSz1Rw/KNkt5T8EmsNnld8beht6
cH3iizvPaP65pdiDM7v8VNepTrJI8Ioc340RjKPuO35fC+2xeQBoNfPd
-----END PRIVATE KEY-----
©

server.crt˜-----BEGIN CERTIFICATE-----
MIIBvTCCAWKgAwIBAgIQdiqrr1LMPzECvuVxW3fQbjAKBggqhkjOPQQDAjAZMRcw
FQYDVQQDDA5pbmZyYXN0cnVjdHVyZTAeFw0yNTEyMzEyMzU1MDBaFw0yNzAxMDEw
MDAwMDBaMBIxEDAOBgNVBAMMB2dhdGV3YXkwWTATBgcqhkjOPQIBBggqhkjOPQMB
BwNCAASYnENMJwsTkYSKhXzifo+ojhZwFN+CvOiifZYDSEwcS+3ux+nV4dEprqW8
X8OORnRhrJcU89i6L3wmH72hj+xIo4GSMIGPMB8GA1UdIwQYMBaAFPF5LPf/GOqy
X0NQ54rxBmbKN++mMBoGA1UdEQQTMBGCD2dhdGV3YXkua2VlbHdheTAOBgNVHQ8B
Af8EBAMCB4AwEwYDVR0lBAwwCgYIKwYBBQUHAwEwHQYDVR0OBBYEFHPHu4Wa7Syw
yoWIPTjlacYd4szdMAwGA1UdEwEB/wQCMAAwCgYIKoZIzj0EAwIDSQAwRgIhAPl4
WJmXyP6jdoNr8yw0VPim5bC/vAR0RHUbZGvIbmrpAiEA8YTx8z7bcjqVBXbLPtko
ldUHG9n/ro6K1l73aIL3aR0=
-----END CERTIFICATE-----
‚

server.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQggaCzjtIrW3CSiNNo
ur090jFCd0xexoK/v2DWc847/WehRANCAASYnENMJwsTkYSKhXzifo+ojhZwFN+C
vOiifZYDSEwcS+3ux+nV4dEprqW8X8OORnRhrJcU89i6L3wmH72hj+xI
-----END PRIVATE KEY-----
"peers*ó
gateway.registry.keelway.dev/cluster-controller:v0.1.0/keelway-cluster-controllergateway"--config=/etc/keelway/gateway.json"
files/etc/keelway"!
peers/var/lib/keelway-gateway*2€€€€0
:&:
127.0.0.1:20002/healthz
 (0ð2registry.k8s.io/pause:3.10.2@H"¥

c000000000000001	ingress-1…æþ‰·
ca.crtª-----BEGIN CERTIFICATE-----
MIIBbTCCAROgAwIBAgIQexWVhMEibfbsz8TKqM17YzAKBggqhkjOPQQDAjAVMRMw
EQYDVQQDDAprdWJlcm5ldGVzMB4XDTI1MTIzMTIzNTUwMFoXDTM1MTIzMDAwMDAw
MFowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABDAq+sIDfwtbrf/v69EjOFDBXpwj3sKFg6OfaXcwKFw3pQzrxpRIGkHk/2mG
aknvGp3AinPG+ALvdBxvh8xzJa6jRTBDMA4GA1UdDwEB/wQEAwIBhjAdBgNVHQ4E
FgQUzYz+OY3Tl0ytxSxVxTZinGs6F58wEgYDVR0TAQH/BAgwBgEB/wIBADAKBggq
hkjOPQQDAgNIADBFAiBNBAUo2f9BuhDmomcQ2pCAwVfYx81R8tsKsZdJjsn2AgIh
AOCQ7jI3yqcr4OI1Ig3/GJ8WwyoNX7o7jyMznbYURySR
-----END CERTIFICATE-----
Ï

haproxy.cfg½
global
    log stdout format raw local0 info
    stats socket /run/haproxy/admin.sock mode 600 level admin
    maxconn 8192
    hard-stop-after 25s
    ssl-default-server-options ssl-min-ver TLSv1.2

defaults
    mode tcp
    log global
    option dontlognull
    option clitcpka
    clitcpka-idle 30s
    clitcpka-intvl 10s
    clitcpka-cnt 3
    timeout client 1h
    timeout tunnel 24h

frontend api
    bind 203.0.113.2:20000
    default_backend kube-apiserver

frontend metrics
    mode http
    bind unix@/run/haproxy/metrics.sock mode 600
    timeout client 10s
    option dontlog-normal
    http-request use-service prometheus-exporter if { path /metrics }
    http-request return status 404

defaults kube-apiserver
    mode tcp
    log global
    balance leastconn
    option redispatch 1
    option srvtcpka
    srvtcpka-idle 30s
    srvtcpka-intvl 10s
    srvtcpka-cnt 3
    retries 3
    timeout connect 2s
    timeout server 1h
    timeout tunnel 24h
    timeout check 2s
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host kubernetes
    http-check expect error-status L7OKC status 200
    default-server inter 1s fastinter 500ms downinter 500ms rise 1 fall 2 on-marked-down shutdown-sessions check check-ssl verify required ca-file /etc/keelway/ca.crt verifyhost kubernetes check-sni kubernetes
g
servers.cfgVbackend kube-apiserver from kube-apiserver
    server kube-apiserver-0 10.0.0.1:20002
"run*ê
ingress docker.io/library/haproxy:2.6.12haproxy-W-db-f/etc/keelway/haproxy.cfg-f/etc/keelway/servers.cfg"
files/etc/keelway"
run/run/haproxy*2€€€€0:5*
run/admin.sock	show infoName: HAProxy
 (0ð2registry.k8s.io/pause:3.10.2:ô
¾inter 1s fastinter 500ms downinter 500ms rise 1 fall 2 on-marked-down shutdown-sessions check check-ssl verify required ca-file /etc/keelway/ca.crt verifyhost kubernetes check-sni kubernetes1
kube-apiserver/kube-apiserver-010.0.0.1:20002@H@c805dab56f0b1aed5fc384fe12eceff85166bf7d7bb9dd48ce4fbf9bbced089e