import { createPrivateKey, createPublicKey, type KeyObject } from 'node:crypto'

// Keys that no receiver may trust. They are fixed, so that what they sign is always the same, and everybody's.

/** A key whose secret is one byte again and again; `der` is what PKCS #8 (RFC 8410) puts before it. */
export const keyOfByte = (byte: number, der = '302e020100300506032b657004220420', length = 32): KeyObject =>
  createPrivateKey({
    key: Buffer.concat([Buffer.from(der, 'hex'), Buffer.alloc(length, byte)]),
    format: 'der',
    type: 'pkcs8',
  })

export const stranger = keyOfByte(2)
/** What a token of the stranger's says is its key. */
export const ownKey = createPublicKey(stranger).export({ format: 'jwk' })
export const ed448 = keyOfByte(3, '3047020100300506032b6571043b0439', 57)
export const rsa = createPrivateKey({
  format: 'jwk',
  key: {
    kty: 'RSA',
    n: 'v3lwpiffUz-inzXXPXqyMpEYz13yzFRNo-J6UF9_TnaHBC0k_qTgn51s9so-oFsfvbCyHudcyg_LXWivAt5q-1UH7CzfLaw30crXttOFZ5fSMMcFqHsBTd7Jz0nipeZeR6aBkVNiSU3mT3bEmXHh6cTH6VE6rkLJ_GrjQ5_VJ1h0h4mfO4_vmH7VtczIYn56-ielJxyHLtTAyGkSgl4I4s1cXcuDtmITQrC44SyouIg5WVuectnvRYxHy51b68SuChJtyZthbJh0LC5ETAQvd5lNuz43Pqb-DpqBZbJdAUwTT4cQdN6QnPn5YMq8T51PK_3YZoRPIO0T0LX611L6Nw',
    e: 'AQAB',
    d: 'BBAnWbQT5ms9xkoffw1ilai3Kym8gSVMbOAqWOVF4s9CFM601ioY61otJnZRN0u0hzmmKS2FewyajXXIucAot5xs0B0XP7VdWkU6Wzju2Xo2Lbtmo9Yd-qrx6ZIRGxS7egkomIH5kahzbP4OTiesAK8HA2AqMh0QHM9tDJGdaNNlM61D3FiJVBJnUcWKDS1VHkVKYS1Kmqqk14GCY-79TL6iuIbbEgNpqeuCyRZxnmsUtzZkTDu_SrTzo3Quf-DWOXUK4vecftSwn4_7de5Vqoluz1LfONa2ffq7t3jereoKW4Lkv9r_5ylibsNJHL1yxbIT3_jnAE5EWWoYrAs9QQ',
    p: '4fccryVFMIRXgHB-r9SiGYbfvkgvtIt57mOYw9yUBANYGDd5o8r0AyqoW6yJYQ6AuPveZLvdsoZBIckbxgYR-LP5udBkSu2_ez1Y7vtJk78WlcY3q4hVUNLElNHt4autELeRsQf0QjKQjeE7Q-fJPzKQDHRc-VzfkotdS_u-Fnc',
    q: '2Oy1_gUZdFvwXlBIqUsPqoxCRzSxepmzO-GAAyFPfUFA1APdR2pDnkVudC3XAVWOGC1Z0zIuhfbb-Wf8W2duUnfTdmWeyXf761HeCTbZIReIap1euuPRM50P34sZjdZhpKEwne4TPCTG0ri7eFPFWiaE8OGuxH0KYkZ1_bXOakE',
    dp: 'lQg-SuXx9EXU0ElhxOYg42UpPH6vuAwlpyzZHJTmqp7qA07TU0wQE-aWk6AAG5tNGrRDwXyGg7A4VOgnATwPrlBFbGAdRa34lHepqDTkGiX152KMZP3OBzh7nwu2MRjhVB0-Ydw1JVPkMy9Rvz-oY54dk5lLmMvASQ7RwcOPY5E',
    dq: 'SXU3V_MAILA1oKqNQI8DmhxvIU_NvheoY2HEiMrR8TeUrXc1isaIaWNXuQ4A3hnLyZIp9ePrb0AeU8IL6iQHbvPW7yQQdmckLxcFGpexRYyDjJ8IAj-9iz3nryqal7Z-UFKpdQG3D8ngbmFSUrgDf7jFkhDKrw0s5AS6VhUn9kE',
    qi: 'rW1-etdaTHQA9hkWct0b1Czs61jVJDPXPX5wRETJ4w_3bSZwFvVpJCTvJb24u7jU-M4aWgk5-rk03eWrAwZI9l2PKtghqA4XM0h3ULOucnX86lN_b6v21LpSy2GHsbcj4pHacNmcfWUlLOeTQeGEMunjqVUFRlEXX65R8-drPpU',
  },
})
