-- A list to wake somebody by is forgotten after a minute: who waited for it may have died.
local data = KEYS[1]
local ttl = tonumber(ARGV[1])
local function written(key)
  redis.call('PEXPIRE', data, ttl)
  local waiting = data .. ':w:' .. key
  local ids = redis.call('SMEMBERS', waiting)
  if #ids == 0 then return end
  for _, id in ipairs(ids) do
    if redis.call('HINCRBY', data .. ':need', id, -1) <= 0 then
      redis.call('HDEL', data .. ':need', id)
      redis.call('RPUSH', data .. ':wake:' .. id, '1')
      redis.call('PEXPIRE', data .. ':wake:' .. id, 60000)
    end
  end
  redis.call('DEL', waiting)
end
